-- append_entries: add entries to the end of a stream that other programs read.
--
-- keys   record   stream   the entries; the stream belongs to no queue
-- args   cap      int      at least so many are kept
--        entries  list     of each entry its fields: name, value, name, value, …
-- reply  <the entries' ids>
-- stored append           the name under which its calls are remembered, as by earlier releases
-- cost   O(entries)
-- full   refused

-- An error for the first entry is the answer. Once the first is added, no other can fail, so all
-- entries are added or none.
local added = {}
for i, entry in ipairs(entries) do
  local id = redis.pcall('XADD', RECORD, 'MAXLEN', '~', cap, '*', unpack(entry))
  if type(id) == 'table' then return id end
  added[i] = id
end
return added
