-- scheduled: one schedule of a queue, stored or declared, and what time it is.
--
-- keys   schedules hash    name -> its version and definition
--        loads    hash     name -> the payload of its jobs
--        recurring hash    name -> its last firing in ms, and its schedule in words
-- args   clock    ms       '' = Redis's clock
--        name     text
-- reply  <version and definition, or none> <payload, or none> <last firing, or none> <now>
-- moves  none
-- cost   O(1)
-- full   works
-- uses   keys layout clock

local name = ARGV[2]
local schedule, payload = redis.call('HGET', SCHEDULES, name), redis.call('HGET', LOADS, name)
return { schedule, payload, redis.call('HGET', RECURRING, name), now }
