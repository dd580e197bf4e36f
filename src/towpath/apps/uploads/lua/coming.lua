-- coming: bodies that come, and until when their servers must be heard of.
--
-- keys   leases    zset     bodies by the time until their server must be heard of, ms
-- args   most      int      how many
-- reply  <body, ms, …>
-- cost   O(log bodies + most)
-- full   works

return redis.call('ZRANGE', LEASES, 0, most - 1, 'WITHSCORES')
