-- correct: corrects the counted bytes of parts, unless they have changed since they were read.
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
-- args   items     list     part, holder, bytes that were counted, bytes that are in Redis, …
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
