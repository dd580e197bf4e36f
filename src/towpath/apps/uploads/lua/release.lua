-- release: parts whose bytes are gone need no room; bodies that still come keep theirs.
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
-- args   members   list     which parts
-- reply  ok
-- cost   O(parts log parts)
-- full   works
-- uses   clock holdings

release_late()
for _, member in ipairs(members) do release(member) end
return 'ok'
