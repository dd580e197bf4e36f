-- prolong: a body still comes, and its server is alive. One that is too slow gives way to others.
--
-- keys   reserved  zset     parts by the time until they have their room, ms
--        sizes     hash     part -> bytes that are counted, and holder
--        leases    zset     bodies by the time until their server must be heard of, ms
--        bodies    hash     body -> bytes, how long they stay, part
--        wanted    hash     all, or an owner -> bytes that were refused
-- args   lease     text     which body
--        slow      int      1 = it is slower than bodies should be
--        expiry    int      ms
-- reply  ok
--        LEASE_GONE
--        GIVE_WAY
-- cost   O(log bodies)
-- full   works
-- uses   clock

local words = redis.call('HGET', BODIES, lease) or ''
local member = string.match(words, '^%d+ %d+ (.*)$')
if not member then return 'LEASE_GONE' end
if slow == 1 then
  local size, holder = string.match(redis.call('HGET', SIZES, member) or '', '^(%d+) (.*)$')
  for _, field in ipairs({ 'all', 'of ' .. (holder or '') }) do
    local lack = tonumber(redis.call('HGET', WANTED, field) or 0)
    if lack > 0 then
      local left = lack - (size or 0)
      if left > 0 then
        redis.call('HSET', WANTED, field, int(left))
      else
        redis.call('HDEL', WANTED, field)
      end
      return 'GIVE_WAY'
    end
  end
end
redis.call('ZADD', LEASES, now + expiry, lease)
redis.call('ZADD', RESERVED, 'XX', 'GT', now + expiry, member)
return 'ok'
