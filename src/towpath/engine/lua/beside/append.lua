-- append: entries at the end of a stream that outsiders read.
--
-- keys   record   stream   the entries; the stream belongs to no queue
-- args   cap      int      at least so many are kept
--        entries  list     of each entry its fields: name, value, name, value, …
-- reply  <the entries' ids>
-- cost   O(entries)
-- full   refused

-- What the server says to the first is the answer: once that is in, no other can fail, so the
-- entries are there whole or not at all.
local added = {}
for i, entry in ipairs(entries) do
  local id = redis.pcall('XADD', RECORD, 'MAXLEN', '~', cap, '*', unpack(entry))
  if type(id) == 'table' then return id end
  added[i] = id
end
return added
