-- find_gone: which of these chunks have no bytes in Redis any more, and which are only staged.
--
-- keys   staging:  string   by staging token: bytes of a chunk that are not placed yet
--        chunks:   string   by number: the bytes of a chunk
--        held      hash     chunk -> the staging token of its bytes
-- args   items     list     chunk, staging token, …
-- stored present           its calls are remembered under this name, as in earlier releases
-- reply  <chunks without bytes, …> <chunks that are staged and not placed, …>
-- cost   O(chunks)
-- full   works

local gone, staged = {}, {}
for i = 1, #items, 2 do
  local number, token = items[i], items[i + 1]
  if redis.call('HGET', HELD, number) == token then
    if redis.call('EXISTS', CHUNKS .. number) == 0 then gone[#gone + 1] = number end
  elseif redis.call('EXISTS', STAGING .. token) == 1 then
    staged[#staged + 1] = number
  else
    gone[#gone + 1] = number
  end
end
return { gone, staged }
