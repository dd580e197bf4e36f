-- schedules: the schedules of a queue with their last firings, and what time it is.
--
-- keys   recurring hash    name -> its last firing and its schedule
--        schedules hash    name -> version and definition of a stored schedule
--        meta     hash     the version of the last change of stored schedules
-- args   clock    ms       '' = Redis's clock
--        known    text     the last change of stored schedules that the caller knows
-- reply  <name, last firing and schedule, ...> <now> <last change> <name, definition, ...>
-- moves  none
-- cost   O(names)
-- full   works
-- uses   keys layout clock

local change = redis.call('HGET', META, 'schedules') or ''
local plans = change ~= ARGV[2] and redis.call('HGETALL', SCHEDULES) or {}
return { redis.call('HGETALL', RECURRING), now, change, plans }
