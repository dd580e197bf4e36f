-- meta: the queue's own numbers: options, tick, token, totals. Read once, written once.

-- META_FIELDS comes from the loader: options, version, and what the script's text names.
local meta, meta_changes, options = {}, {}, nil
do
  local values = redis.call('HMGET', META, unpack(META_FIELDS))
  if not values[1] then
    return redis.error_reply('QUEUE_UNKNOWN')
  end
  if values[2] ~= ARGV[5] then
    return redis.error_reply('QUEUE_CHANGED')  -- the caller goes by options of another day
  end
  options = cmsgpack.unpack(values[1])
  for i = 3, #META_FIELDS do meta[META_FIELDS[i]] = tonumber(values[i] or 0) end
end

local function set_meta(field, value)
  meta[field] = value
  meta_changes[field] = value
end

local function count(field)
  set_meta(field, meta[field] + 1)
end

-- An order number, never a time: after a million quick submits it is far ahead of the clock.
local function next_tick()
  set_meta('tick', math.max(now, meta.tick + 1))
  return meta.tick
end

-- Also grows across a fail-over that lost writes, because the clock has gone on meanwhile.
local function next_token()
  set_meta('token', math.max(now_us, meta.token + 1))
  return meta.token
end

local function write_meta()
  local fields = {}
  for field, value in pairs(meta_changes) do
    fields[#fields + 1] = field
    fields[#fields + 1] = value
  end
  if #fields > 0 then redis.call('HSET', META, unpack(fields)) end
end
