-- spare: reservations that may be taken back for a body that was refused.
--
-- keys   reserved  zset     parts by the time when their reservation ends, ms
--        sizes     hash     part -> counted bytes, and holder
--        parts     hash     part -> floor, own, extent and number of bodies (`lib/holdings`)
--        unsure    set      parts whose bytes must be counted, as a server died
-- args   member    text     which part was refused
--        holder    text     whose body it is
--        due       int      ms: a part is silent if its reservation ends within this time
--        most      int      how many parts are read
-- reply  <unsure part, bytes, …> <silent part of the holder, bytes, …: the longest silent first>
-- cost   O(log parts + unsure + most)
-- full   works
-- uses   clock

-- The counted bytes of a part, if no body of it arrives; and their holder.
local function settled(part)
  local size, whose = string.match(redis.call('HGET', SIZES, part) or '', '^(%d+) (.*)$')
  local words = redis.call('HGET', PARTS, part) or ''
  local floor, bodies = string.match(words, '^(%d+) %d+ %d+ (%d+)$')
  if bodies == '0' then return tonumber(floor), whose end
  -- An earlier release did not write `parts`.
  return not bodies and tonumber(size) or nil, whose
end

local unsure, silent = {}, {}
local function add(list, part, bytes)
  list[#list + 1] = part
  list[#list + 1] = bytes
end

for _, part in ipairs(redis.call('SMEMBERS', UNSURE)) do
  local bytes = settled(part)
  if bytes then add(unsure, part, bytes) end
end
local _, whose = settled(member)
local late = redis.call('ZRANGEBYSCORE', RESERVED, '-inf', int(now + due), 'LIMIT', 0, most)
for _, part in ipairs(late) do
  local bytes, owner = settled(part)
  if bytes and bytes > 0 and part ~= member and owner == (whose or holder) then
    add(silent, part, bytes)
  end
end
return { unsure, silent }
