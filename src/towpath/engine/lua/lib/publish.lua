-- publish: writes events to the stream, and pushes the wake-up. No job depends on them, so a key of
-- another type stops no work: pcall.
--
-- Events are written while the queue has followers, or always if its options say so. Followers set
-- and renew (`follow`) the times until which they want all events, `watched`, or those that end jobs,
-- `awaited`. When one of these times is over, the first event that is not written is replaced by a
-- mark, and the time becomes 0: so each gap is marked in the stream, once.

local WAIT_CAP_MS = 5000  -- no waiter waits longer without looking for work
local ENTRY_BYTES = 8192  -- so that a stream which is capped in entries is capped in bytes too
local FIRST_MS = 1000     -- the events of a new queue are written for so long
local ENDS = { complete = true, dead = true, cancel = true, delete = true }

local function add_entry(...)
  redis.pcall('XADD', EVENTS, 'MAXLEN', '~', options.events_most, '*', ...)
end

-- Write an event that is too long for one entry: *ids* are lines, and are cut between two of them.
local function add_in_parts(event, ids)
  local from = 1
  while from <= #ids do
    local stop = string.find(ids, '\n', from + ENTRY_BYTES, true) or #ids + 1
    add_entry(event, string.sub(ids, from, stop - 1))
    from = stop + 1
  end
end

local function add_events(event_ids)
  local entry, bytes = {}, 0
  for i = 1, #event_ids, 2 do
    entry[i], entry[i + 1] = event_ids[i], table.concat(event_ids[i + 1], '\n')
    bytes = bytes + #entry[i + 1]
  end
  if bytes > ENTRY_BYTES then
    for i = 1, #entry, 2 do add_in_parts(entry[i], entry[i + 1]) end
  elseif bytes > 0 then
    add_entry(unpack(entry))
  end
end

local function ends_of(event_ids)
  local ends = {}
  for i = 1, #event_ids, 2 do
    if ENDS[event_ids[i]] then
      ends[#ends + 1] = event_ids[i]
      ends[#ends + 1] = event_ids[i + 1]
    end
  end
  return ends
end

local function add_followed(event_ids)
  local none, watched, awaited = options.events == 'none', meta.watched, meta.awaited
  if options.events == 'all' or (watched > now and not none) then return add_events(event_ids) end
  if watched < 0 then  -- a new queue: its followers could not set the time before it existed
    if none then return end
    meta.watched = now + FIRST_MS
    redis.call('HSET', META, 'state', PACKED_STATE)
    return add_events(event_ids)
  end
  local ends = ends_of(event_ids)
  local lost = #ends > 0 and awaited > 0 and (awaited <= now or none)
  if watched > 0 or lost then
    add_entry('gap', '')
    meta.watched, meta.awaited = 0, lost and 0 or awaited
    redis.call('HSET', META, 'state', PACKED_STATE)
  end
  if awaited > now and not none then add_events(ends) end
end

-- *event_ids* is event, {id, ...}, event, {id, ...}, ...
local function publish(wake, event_ids)
  if event_ids[1] and (meta.watched ~= 0 or meta.awaited ~= 0 or options.events == 'all') then add_followed(event_ids) end
  if wake then redis.pcall('RPUSH', WAKE, '1') end
end
