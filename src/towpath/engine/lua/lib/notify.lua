-- notify: events for followers, and wake-ups for waiters.
--
-- uses   publish more_keys

local WAKES_KEPT_MS = 10000  -- a wake-up without a waiter expires; waiters look more often
local notes, noted = {}, {}  -- event -> ids, and the events in the order they came
local wanted = false         -- whether a waiter should look for work
local wanted_of = {}         -- selector -> the same for its waiters
local called = {}            -- those of these selectors whose list has no wake-up yet

local function note(event, id)
  local ids = notes[event]
  if not ids then
    ids = {}
    notes[event] = ids
    noted[#noted + 1] = event
  end
  ids[#ids + 1] = id
end

-- A waiter for such a job should look for work.
local function want(job)
  wanted = true
  if job.selector then wanted_of[job.selector] = true end
end

-- Whether to push a wake-up. A list has at most one; a waiter that takes it and leaves work behind
-- pushes another.
local function plan_wakeups()
  for selector in pairs(wanted_of) do
    if redis.pcall('LLEN', WAKES .. selector) == 0 then called[#called + 1] = selector end
  end
  return wanted and redis.pcall('LLEN', WAKE) == 0
end

local function notify(wake)
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
