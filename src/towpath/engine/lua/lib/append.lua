-- append: entries at the end of a stream that outsiders read. It belongs to no queue, so it is sent
-- by itself: KEYS[1] the stream; ARGV[1] its cap, then for each entry how many words it has and
-- those words, field by field. Answers the entries' ids, or what the server says to the first: once
-- that is in, no other can fail, so the entries are there whole or not at all.

local added, at = {}, 2
while at <= #ARGV do
  local last = at + tonumber(ARGV[at])
  local id = redis.pcall('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', unpack(ARGV, at + 1, last))
  if type(id) == 'table' then return id end
  added[#added + 1], at = id, last + 1
end
return added
