-- spare: room that may be taken back for a body that was refused.
--
-- keys   reserved  zset     parts by the time until they have their room, ms
--        sizes     hash     part -> bytes that are counted, and holder
--        parts     hash     part -> bytes there, bytes that bodies bring, bytes of all, bodies
--        unsure    set      parts whose bytes somebody has to look for: a server died
-- args   member    text     which part was refused
--        holder    text     whose body it is
--        due       int      ms: a part is silent if it has its room for no longer than this
--        most      int      how many parts are looked at
-- reply  <unsure part, bytes, …> <silent part of the holder, bytes, …: the longest silent first>
-- cost   O(log parts + unsure + most)
-- full   works
-- uses   clock

-- The bytes of a part that are counted as there, if no body of it comes; and whose they are.
local function settled(part)
  local size, whose = string.match(redis.call('HGET', SIZES, part) or '', '^(%d+) (.*)$')
  local words = redis.call('HGET', PARTS, part) or ''
  local floor, bodies = string.match(words, '^(%d+) %d+ %d+ (%d+)$')
  if bodies == '0' then return tonumber(floor), whose end
  -- An earlier release wrote no words.
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
