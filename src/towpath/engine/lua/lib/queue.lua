-- queue: the queue's options and numbers as they are in the store; a repeat needs none.

-- From the loader: META_FIELDS, options, version and what the script's text names; OPTIONS_FORMAT.
local meta, options = {}, nil
local MINUTE_MS = 60000

-- A repeat gets the answer that it had, whatever the queue has become since: refused here, the
-- call would be made anew under another number, and have a second effect.
if not remembered then
  local values = redis.call('HMGET', META, unpack(META_FIELDS))
  if not values[1] then
    return redis.error_reply('QUEUE_UNKNOWN')
  end
  if values[2] ~= ARGV[5] then
    return redis.error_reply('QUEUE_CHANGED')  -- the caller goes by options of another day
  end
  options = { struct.unpack(OPTIONS_FORMAT, values[1]) }  -- the loader knows their places
  for i = 3, #META_FIELDS do meta[META_FIELDS[i]] = tonumber(values[i] or 0) end
end
