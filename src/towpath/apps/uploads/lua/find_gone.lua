-- find_gone: which of these chunks have no bytes in Redis any more.
--
-- keys   staging:  string   by staging token: bytes of a chunk that are not placed yet
--        chunks:   string   by number: the bytes of a chunk
--        held      hash     chunk -> the staging token of its bytes
-- args   items     list     chunk, staging token, …
-- stored present           its calls are remembered under this name, as in earlier releases
-- reply  <chunk, staging token, …>
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
