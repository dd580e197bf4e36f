-- planned: what a queue stores of one schedule: its last firing, and its version if it was created at
-- run time. A schedule that code declares is defined only in the workers.

-- The version of the stored schedule; '' = none is stored.
local function version_of(name)
  local kept = redis.call('HGET', SCHEDULES, name)
  return kept and string.match(kept, '^%S+') or ''
end

-- The last firing in ms, 0 = none; and all that is stored with it.
local function last_firing(name)
  local words = redis.call('HGET', RECURRING, name)
  return words and tonumber(string.match(words, '^%d+')) or 0, words or ''
end

-- The ending of the stored text if the last firing moves on without a job: that the schedule was
-- never fired, or for which time it was.
local function unfired(words)
  if words == '' or string.find(words, ', not fired yet$') then return ', not fired yet' end
  return string.match(words, ', fired for %d+$') or ', fired for ' .. string.match(words, '^%d+')
end
