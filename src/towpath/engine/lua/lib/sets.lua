-- sets: what this call removes from sorted sets and adds to them.

local sets, set_keys = {}, {}  -- zset key -> {add = {score, id, ...}, rem = {id, ...}}

local function zset(key)
  local set = sets[key]
  if not set then
    set = { add = {}, rem = {} }
    sets[key] = set
    set_keys[#set_keys + 1] = key
  end
  return set
end

local function zrem(key, id)
  local rem = zset(key).rem
  rem[#rem + 1] = id
end

local function zadd(key, score, id)
  local add = zset(key).add
  local n = #add
  add[n + 1] = score
  add[n + 2] = id
end

-- Fails, before the first write, if a key has another type or its slot is being moved.
local function check_sets()
  for _, key in ipairs(set_keys) do redis.call('ZCARD', key) end
end

local function write_removals()
  for _, key in ipairs(set_keys) do send('ZREM', sets[key].rem, key) end
end

local function write_additions()
  for _, key in ipairs(set_keys) do send('ZADD', sets[key].add, key) end
end
