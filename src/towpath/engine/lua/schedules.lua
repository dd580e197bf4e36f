-- schedules: those of a queue with their last firings, and what time it is.
--
-- keys   recurring hash    name -> its last firing and its schedule
--        schedules hash    name -> version and definition of a schedule that is kept here
--        meta     hash     the version of the last change of those
-- args   clock    ms       '' = the server's
--        known    text     the change up to which the caller knows the kept schedules
-- reply  <name, last firing and schedule, ...> <now> <last change> <name, definition, ...>
-- moves  none
-- cost   O(names)
-- full   works
-- uses   keys layout clock

local change = redis.call('HGET', META, 'schedules') or ''
local plans = change ~= ARGV[2] and redis.call('HGETALL', SCHEDULES) or {}
return { redis.call('HGETALL', RECURRING), now, change, plans }
