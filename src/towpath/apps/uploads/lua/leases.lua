-- leases: the leases of arriving bodies.
--
-- keys   leases    zset     bodies by the time when their lease ends, ms
-- args   most      int      how many
-- reply  <body, ms, …>
-- cost   O(log bodies + most)
-- full   works

return redis.call('ZRANGE', LEASES, 0, most - 1, 'WITHSCORES')
