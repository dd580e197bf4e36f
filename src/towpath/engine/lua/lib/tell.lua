-- tell: what those should know who wait or watch.
--
-- uses   publish more_keys

local WAKES_KEPT_MS = 10000  -- a token for nobody goes by itself: who waits looks more often
local notes, noted = {}, {}  -- event -> ids, and the events in the order they came
local wanted = false         -- whether a waiting worker should look
local wanted_of = {}         -- selector -> the same of who waits for such jobs
local called = {}            -- the selectors of those for whom no token is there yet

local function note(event, id)
  local ids = notes[event]
  if not ids then
    ids = {}
    notes[event] = ids
    noted[#noted + 1] = event
  end
  ids[#ids + 1] = id
end

-- Somebody should look who waits for such a job.
local function want(job)
  wanted = true
  if job.selector then wanted_of[job.selector] = true end
end

-- At most one token: who takes it and leaves work behind puts it back.
local function somebody_should_look()
  for selector in pairs(wanted_of) do
    if redis.pcall('LLEN', WAKES .. selector) == 0 then called[#called + 1] = selector end
  end
  return wanted and redis.pcall('LLEN', WAKE) == 0
end

local function tell(wake)
  local entry = {}
  for i, event in ipairs(noted) do
    entry[2 * i - 1] = event
    entry[2 * i] = notes[event]
  end
  publish(wake, entry)
  for _, selector in ipairs(called) do
    redis.pcall('RPUSH', WAKES .. selector, '1')
    redis.pcall('PEXPIRE', WAKES .. selector, WAKES_KEPT_MS)
  end
end
