-- tell: let those know who wait or watch. Nobody's job depends on it, so a key that somebody
-- gave another type stops no work: pcall.

local notes, noted = {}, {}  -- event -> ids, and the events in the order they came
local wanted = false         -- whether a waiting worker should look
local WAIT_CAP_MS = 5000     -- nobody waits longer without looking

local function note(event, id)
  local ids = notes[event]
  if not ids then
    ids = {}
    notes[event] = ids
    noted[#noted + 1] = event
  end
  ids[#ids + 1] = id
end

-- At most one token: who takes it and leaves work behind puts it back.
local function somebody_should_look()
  return wanted and redis.pcall('LLEN', WAKE) == 0
end

local function tell(wake)
  if #noted > 0 and options.events > 0 then
    local entry = {}
    for i, event in ipairs(noted) do
      entry[2 * i - 1] = event
      entry[2 * i] = table.concat(notes[event], '\n')
    end
    redis.pcall('XADD', EVENTS, 'MAXLEN', '~', options.events, '*', unpack(entry))
  end
  if wake then redis.pcall('RPUSH', WAKE, '1') end
end
