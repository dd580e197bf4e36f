-- reservations: parts of which bytes are there, and no body comes.
--
-- keys   reserved  zset     parts by the time until they have their room, ms
--        sizes     hash     part -> bytes that are counted, and holder
--        parts     hash     part -> bytes there, bytes that bodies bring, bytes of all, bodies
-- args   most      int      how many
-- reply  <part, bytes, …>
-- cost   O(log parts + most)
-- full   works

local found = {}
for _, member in ipairs(redis.call('ZRANGE', RESERVED, 0, most - 1, 'REV')) do
  local words = redis.call('HGET', PARTS, member) or ''
  local floor, bodies = string.match(words, '^(%d+) %d+ %d+ (%d+)$')
  -- An earlier release wrote no words.
  floor = floor or string.match(redis.call('HGET', SIZES, member) or '', '^%d+')
  if tonumber(bodies or 0) == 0 then
    found[#found + 1] = member
    found[#found + 1] = tonumber(floor or 0)
  end
end
return found
