-- renew: renews the reservations of parts.
--
-- keys   reserved  zset     parts by the time when their reservation ends, ms
-- args   members   list     which parts
--        expiry    int      ms
-- reply  ok
-- cost   O(parts log parts)
-- full   works
-- uses   clock

for _, member in ipairs(members) do
  redis.call('ZADD', RESERVED, 'XX', 'GT', now + expiry, member)
end
return 'ok'
