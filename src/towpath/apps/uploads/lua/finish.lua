-- finish: ends the lease of a body. Only its received bytes stay counted.
--
-- keys   reserved  zset     parts by the time when their reservation ends, ms
--        sizes     hash     part -> counted bytes, and holder
--        parts     hash     part -> floor, own, extent and number of bodies (`lib/holdings`)
--        shares    hash     holder -> counted bytes
--        total     string   counted bytes of all parts
--        leases    zset     bodies by the time when their lease ends, ms
--        bodies    hash     body -> its bytes, how long they stay (ms), its part
--        drained   hash     all, or a holder -> when room was freed last, and how much lately
--        unsure    set      parts whose bytes must be counted, as a server died
--        wanted    hash     all, or a holder -> refused bytes; holders that must yield to others
-- args   lease     text     which body
--        member    text     which part of which upload
--        holder    text     whose share it counts for
--        came      int      bytes of it that are in Redis
--        slow      int      1 = it was slower than bodies should be, and was cut
--        late      int      the same, for a body whose lease has expired
--        stays     int      ms
-- reply  ok
-- cost   O(log parts)
-- full   works
-- uses   clock holdings

local YIELD = 15000 -- ms for which a holder must let refused bodies of others go first

local lack = slow == 1 and redis.call('HGET', WANTED, 'all')
local known = finish(lease, came)
if known and lack then
  -- A holder that reserves room and brings nothing gets no room again before the others.
  redis.call('HSET', WANTED, 'after ' .. holder, int(now + YIELD) .. ' ' .. lack)
  redis.call('PEXPIRE', WANTED, LONGEST)
end
local stayed = known and came or late
if not known and late > 0 then
  local part = look(member)
  part.holder = part.holder or holder
  part.floor = part.floor + late
  count(part)
end
if stayed > 0 then redis.call('ZADD', RESERVED, 'GT', now + stays, member) end
return 'ok'
