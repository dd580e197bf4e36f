-- queue: the queue's options and numbers as they are in the store; a repeat needs none.

-- From the loader: META_FIELDS, options, version and what the script's text names; OPTIONS_FORMAT;
-- OPTIONS_BYTES and OPTIONS_REST, for queues that were written before options were marked as
-- decided; MARKS, the place of the marks; DEFAULTS_ID; and USED_OPTIONS and USED_DEFAULTS, the
-- places and defaults of those that the text names.
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
  local packed = values[1]
  if #packed < OPTIONS_BYTES then packed = packed .. OPTIONS_REST end
  options = { struct.unpack(OPTIONS_FORMAT, packed) }
  if options[MARKS + 1] ~= DEFAULTS_ID then  -- of another release: its defaults are not ours
    local places, defaults = USED_OPTIONS, USED_DEFAULTS
    for i = 1, #places do
      if string.byte(options[MARKS], places[i]) ~= 49 then options[places[i]] = defaults[i] end
    end
  end
  for i = 3, #META_FIELDS do meta[META_FIELDS[i]] = tonumber(values[i] or 0) end
end
