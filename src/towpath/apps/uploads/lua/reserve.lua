-- reserve: room for a whole part, before the first of its bytes comes. Again, it lasts longer.
--
-- keys   reserved  zset     parts by the time until they have their room, ms
--        sizes     hash     part -> bytes and holder
--        shares    hash     holder -> bytes
--        total     string   bytes of all
-- args   member    text     which part of which upload
--        holder    text     whose share it counts for
--        size      int      bytes
--        most      int      bytes of all together
--        share     int      bytes of one holder
--        expiry    int      ms
-- reply  ok
--        BUDGET_FULL
--        SHARE_FULL
-- cost   O(log parts)
-- full   refused
-- uses   clock holdings

-- What nobody renewed goes whatever is answered: it is not the caller's.
release_expired()
local until_then = redis.call('ZSCORE', RESERVED, member)
if not until_then then
  if tonumber(redis.call('GET', TOTAL) or 0) + size > most then return 'BUDGET_FULL' end
  local own = tonumber(redis.call('HGET', SHARES, holder) or 0)
  if own + size > share then return 'SHARE_FULL' end
  redis.call('HSET', SIZES, member, int(size) .. ' ' .. holder)
  redis.call('HINCRBY', SHARES, holder, size)
  redis.call('INCRBY', TOTAL, size)
end
redis.call('ZADD', RESERVED, 'GT', now + expiry, member)
return 'ok'
