-- tell: what those should know who wait or watch.
--
-- uses   publish

local notes, noted = {}, {}  -- event -> ids, and the events in the order they came
local wanted = false         -- whether a waiting worker should look

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
  local entry = {}
  for i, event in ipairs(noted) do
    entry[2 * i - 1] = event
    entry[2 * i] = table.concat(notes[event], '\n')
  end
  publish(wake, entry)
end
