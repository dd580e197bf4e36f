-- meta: the queue's own numbers, changed by this call: tick, token, totals. Written once.
--
-- uses   queue

local meta_changes = {}

-- MORE_FIELDS comes from the loader: what is named here, but not on the short way.
if #MORE_FIELDS > 0 then
  local values = redis.call('HMGET', META, unpack(MORE_FIELDS))
  for i = 1, #MORE_FIELDS do meta[MORE_FIELDS[i]] = tonumber(values[i] or 0) end
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
