-- usage: how much of the budget is reserved.
--
-- keys   reserved  zset     parts by the time until they have their room, ms
--        total     string   bytes of all
-- args   none
-- reply  <bytes> <parts>
-- cost   O(1)
-- full   works

return { redis.call('GET', TOTAL) or '0', redis.call('ZCARD', RESERVED) }
