-- usage: how much of the budget is used.
--
-- keys   reserved  zset     parts by the time when their reservation ends, ms
--        total     string   counted bytes of all parts
-- args   none
-- reply  <bytes> <parts>
-- cost   O(1)
-- full   works

return { redis.call('GET', TOTAL) or '0', redis.call('ZCARD', RESERVED) }
