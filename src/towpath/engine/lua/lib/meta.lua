-- meta: the queue's own numbers: options, tick, token, counters. Read once, written once.

local meta, meta_changes, options = {}, {}, nil
do
  local flat = redis.call('HGETALL', META)
  for i = 1, #flat, 2 do meta[flat[i]] = flat[i + 1] end
  if not meta.options then
    return redis.error_reply('QUEUE_UNKNOWN')
  end
  options = cmsgpack.unpack(meta.options)
end

local function set_meta(field, value)
  meta[field] = value
  meta_changes[field] = value
end

local function count(field)
  set_meta(field, (meta[field] or 0) + 1)
end

-- An order number, never a time: after a million quick submits it is far ahead of the clock.
local function next_tick()
  set_meta('tick', math.max(now, (meta.tick or 0) + 1))
  return meta.tick
end

-- Also grows across a fail-over that lost writes, because the clock has gone on meanwhile.
local function next_token()
  set_meta('token', math.max(now_us, (meta.token or 0) + 1))
  return meta.token
end
