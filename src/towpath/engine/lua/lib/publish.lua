-- publish: entries of the stream of events, and the token that wakes who waits. Nobody's job
-- depends on it, so a key that somebody gave another type stops no work: pcall.

local WAIT_CAP_MS = 5000  -- nobody waits longer without looking
local ENTRY_BYTES = 8192  -- so that a stream which is capped in entries is capped in bytes too

local function add_entry(...)
  redis.pcall('XADD', EVENTS, 'MAXLEN', '~', options.events, '*', ...)
end

-- What is too long for one entry: *ids* are lines, and are cut between two of them.
local function add_in_parts(event, ids)
  local from = 1
  while from <= #ids do
    local stop = string.find(ids, '\n', from + ENTRY_BYTES, true) or #ids + 1
    add_entry(event, string.sub(ids, from, stop - 1))
    from = stop + 1
  end
end

-- *told* is event, ids, event, ids, ...
local function publish(wake, told)
  local bytes = 0
  for i = 2, options.events > 0 and #told or 0, 2 do bytes = bytes + #told[i] end
  if bytes > ENTRY_BYTES then
    for i = 2, #told, 2 do add_in_parts(told[i - 1], told[i]) end
  elseif bytes > 0 then
    add_entry(unpack(told))
  end
  if wake then redis.pcall('RPUSH', WAKE, '1') end
end
