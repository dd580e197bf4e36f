-- finish: a body has ended. Of its room, what is there stays counted.
--
-- keys   reserved  zset     parts by the time until they have their room, ms
--        sizes     hash     part -> bytes that are counted, and holder
--        parts     hash     part -> bytes there, bytes that bodies bring, bytes of all, bodies
--        shares    hash     holder -> bytes
--        total     string   bytes of all
--        leases    zset     bodies by the time until their server must be heard of, ms
--        bodies    hash     body -> bytes, how long they stay, part
--        drained   hash     all, or an owner -> when room came free, and bytes
--        unsure    set      parts whose bytes somebody has to look for: a server died
--        wanted    hash     all, or an owner -> bytes that were refused; who leaves them to others
-- args   lease     text     which body
--        member    text     which part of which upload
--        holder    text     whose share it counts for
--        came      int      bytes of it that are there
--        slow      int      1 = it was slower than bodies should be, and did not come whole
--        late      int      the same if nothing is known of the body any more
--        stays     int      ms
-- reply  ok
-- cost   O(log parts)
-- full   works
-- uses   clock holdings

local YIELD = 15000 -- ms for which an owner leaves room to those who were refused

local lack = slow == 1 and redis.call('HGET', WANTED, 'all')
local known = finish(lease, came)
if known and lack then
  -- An owner that holds room and brings nothing does not get it again before the others.
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
