-- renew_lease: renews the lease of a body. A body that is too slow gives way to others.
--
-- keys   reserved  zset     parts by the time when their reservation ends, ms
--        sizes     hash     part -> counted bytes, and holder
--        leases    zset     bodies by the time when their lease ends, ms
--        bodies    hash     body -> its bytes, how long they stay (ms), its part
--        wanted    hash     all, or a holder -> refused bytes; holders that must yield to others
-- args   lease     text     which body
--        slow      int      1 = it is slower than bodies should be
--        expiry    int      ms
-- stored prolong           its calls are remembered under this name, as in earlier releases
-- reply  ok
--        LEASE_GONE
--        GIVE_WAY
-- cost   O(log bodies)
-- full   works
-- uses   clock

local YIELD = 15000 -- ms for which a holder must let refused bodies of others go first

local words = redis.call('HGET', BODIES, lease) or ''
local member = string.match(words, '^%d+ %d+ (.*)$')
if not member then return 'LEASE_GONE' end
if slow == 1 then
  local size, holder = string.match(redis.call('HGET', SIZES, member) or '', '^(%d+) (.*)$')
  for _, field in ipairs({ 'all', 'of ' .. (holder or '') }) do
    local lack = tonumber(redis.call('HGET', WANTED, field) or 0)
    if lack > 0 then
      local left = lack - (size or 0)
      redis.call('HDEL', WANTED, field)
      if left > 0 then redis.call('HSET', WANTED, field, int(left)) end
      if field == 'all' and holder then
        redis.call('HSET', WANTED, 'after ' .. holder, int(now + YIELD) .. ' ' .. int(lack))
      end
      redis.call('PEXPIRE', WANTED, 60000)
      return 'GIVE_WAY'
    end
  end
end
redis.call('ZADD', LEASES, now + expiry, lease)
redis.call('ZADD', RESERVED, 'XX', 'GT', now + expiry, member)
return 'ok'
