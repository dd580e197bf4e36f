-- release: room that is not needed any more.
--
-- keys   reserved  zset     parts by the time until they have their room, ms
--        sizes     hash     part -> bytes and holder
--        shares    hash     holder -> bytes
--        total     string   bytes of all
-- args   members   list     which parts
-- reply  ok
-- cost   O(parts log parts)
-- full   works
-- uses   clock holdings

release_expired()
for _, member in ipairs(members) do release(member) end
return 'ok'
