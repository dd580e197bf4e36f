-- trips: which instances are not called, and by which schedulers.
--
-- keys   broken   zset     instance and scheduler, by the end of the pause, ms
-- args   most     int      answer with so many
-- reply  <instance and scheduler, the end of the pause, …>
-- uses   clock
-- cost   O(answer)
-- full   works

return redis.call('ZRANGEBYSCORE', BROKEN, '(' .. int(now), '+inf', 'WITHSCORES', 'LIMIT', 0, most)
