-- reservations: the parts that have bytes in Redis and no arriving body.
--
-- keys   reserved  zset     parts by the time when their reservation ends, ms
--        sizes     hash     part -> counted bytes, and holder
--        parts     hash     part -> floor, own, extent and number of bodies (`lib/holdings`)
-- args   most      int      how many
-- reply  <part, bytes, …>
-- cost   O(log parts + most)
-- full   works

local found = {}
for _, member in ipairs(redis.call('ZRANGE', RESERVED, 0, most - 1, 'REV')) do
  local words = redis.call('HGET', PARTS, member) or ''
  local floor, bodies = string.match(words, '^(%d+) %d+ %d+ (%d+)$')
  -- An earlier release did not write `parts`.
  floor = floor or string.match(redis.call('HGET', SIZES, member) or '', '^%d+')
  if tonumber(bodies or 0) == 0 then
    found[#found + 1] = member
    found[#found + 1] = tonumber(floor or 0)
  end
end
return found
