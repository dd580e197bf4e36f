-- correct: how much of parts is there, by those who looked. What has changed since stays.
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
-- args   items     list     part, holder, bytes that were counted, bytes that are there, …
--        stays     int      ms
-- reply  <how many were corrected>
-- cost   O(parts log parts)
-- full   works
-- uses   clock holdings

local corrected = 0
for i = 1, #items, 4 do
  local part = look(items[i])
  if part.bodies == 0 and part.floor == items[i + 2] then
    part.holder, part.floor = part.holder or items[i + 1], items[i + 3]
    redis.call('SREM', UNSURE, part.member)
    count(part)
    if part.floor > 0 then redis.call('ZADD', RESERVED, 'GT', now + stays, part.member) end
    corrected = corrected + 1
  end
end
return corrected
