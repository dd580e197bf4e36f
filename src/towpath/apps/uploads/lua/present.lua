-- present: which of these chunks have no bytes here any more.
--
-- keys   staging:  string   by token: what has come of a chunk
--        chunks:   string   by number: the bytes of a chunk
--        held      hash     chunk -> the token its bytes came under
-- args   items     list     chunk, token, …
-- reply  <chunk, token, …>
-- cost   O(chunks)
-- full   works

local gone = {}
for i = 1, #items, 2 do
  local number, token = items[i], items[i + 1]
  local placed = redis.call('HGET', HELD, number) == token
  local there = redis.call('EXISTS', STAGING .. token)
  if placed then there = redis.call('EXISTS', CHUNKS .. number) end
  if there == 0 then
    gone[#gone + 1] = number
    gone[#gone + 1] = token
  end
end
return gone
