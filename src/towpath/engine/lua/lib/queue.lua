-- queue: the queue's options and numbers as they are stored; a repeated call needs none.

-- From the loader: META_FIELDS, options, version and the fields of the numbers that the script's text names;
-- READ_NUMBERS, which fills `meta` from them; OPTIONS_FORM, OPTIONS_FORMAT, OPTION_DEFAULTS and OPTION_PLACES.
local meta, options = nil, nil
local MINUTE_MS = 60000

-- A repeat gets its first answer, even if the options have changed since. If it were refused here, the
-- engine would make the call again under another number, and it would have a second effect.
if not remembered then
  local values = redis.call('HMGET', META, META_FIELDS)
  local packed = values[1]
  if not packed then
    return redis.error_reply('QUEUE_UNKNOWN')
  end
  if values[2] ~= ARGV[5] then
    return redis.error_reply('QUEUE_CHANGED')  -- the caller's options are outdated
  end
  if string.sub(packed, 1, 8) == OPTIONS_FORM then
    options = { struct.unpack(OPTIONS_FORMAT, packed, 9) }
  else  -- packed by a release with other options or defaults
    options = OPTION_DEFAULTS
    local places, decided = OPTION_PLACES, redis.call('HGET', META, 'decided')
    for name, value in pairs(cmsgpack.unpack(decided or '\128')) do
      if places[name] then options[places[name]] = value end
    end
  end
  READ_NUMBERS
end
