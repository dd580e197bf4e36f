-- recurring: the recurring work of a queue, and what time it is.
--
-- keys   recurring hash    name -> its last firing and its schedule
-- args   clock    ms       '' = the server's
-- reply  <name, last firing and schedule, ...> <now>
-- moves  none
-- cost   O(names)
-- full   works
-- uses   keys clock

return { redis.call('HGETALL', RECURRING), now }
