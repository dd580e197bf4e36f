-- release: releases the reservations of parts whose bytes are gone; arriving bodies keep theirs.
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
-- args   members   list     which parts
-- reply  ok
-- cost   O(parts log parts)
-- full   works
-- uses   clock holdings

release_late()
for _, member in ipairs(members) do release(member) end
return 'ok'
