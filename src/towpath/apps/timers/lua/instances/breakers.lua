-- breakers: the instances that schedulers avoid now, and which schedulers do.
--
-- keys   broken   zset     instance and scheduler, by the end of the pause, ms
-- args   most     int      how many are returned at most
-- reply  <instance and scheduler, the end of the pause, …>
-- uses   clock
-- cost   O(answer)
-- full   works

return redis.call('ZRANGEBYSCORE', BROKEN, '(' .. int(now), '+inf', 'WITHSCORES', 'LIMIT', 0, most)
