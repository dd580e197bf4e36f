-- reservations: parts that have their room for longer than those of which nothing has come.
--
-- keys   reserved  zset     parts by the time until they have their room, ms
-- args   beyond    int      ms from now: only what is reserved for longer
--        most      int      how many
-- reply  <part, …>
-- cost   O(log parts + most)
-- full   works
-- uses   clock

return redis.call('ZRANGEBYSCORE', RESERVED, '(' .. int(now + beyond), '+inf', 'LIMIT', 0, most)
