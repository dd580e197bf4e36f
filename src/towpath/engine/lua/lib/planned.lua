-- planned: what a queue knows of one schedule: how far it has got, and what it says if it is
-- kept here. Schedules that code declares are the workers' own knowledge.

-- The version of the schedule that is kept; '' = none is.
local function version_of(name)
  local kept = redis.call('HGET', SCHEDULES, name)
  return kept and string.match(kept, '^%S+') or ''
end

-- The instant it has got to in ms, 0 = it was never seen; and all that is written about it.
local function last_firing(name)
  local words = redis.call('HGET', RECURRING, name)
  return words and tonumber(string.match(words, '^%d+')) or 0, words or ''
end

-- What stands behind the words of work that has got further than it was fired for.
local function unfired(words)
  if words == '' or string.find(words, ', not fired yet$') then return ', not fired yet' end
  return string.match(words, ', fired for %d+$') or ', fired for ' .. string.match(words, '^%d+')
end
