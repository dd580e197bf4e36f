-- placed: which of these chunks have their bytes in their place, and not beside it.
--
-- keys   held      hash     chunk -> the token its bytes came under
-- args   items     list     chunk, token, …
-- reply  <chunk, …>
-- cost   O(chunks)
-- full   works

local placed = {}
for i = 1, #items, 2 do
  if redis.call('HGET', HELD, items[i]) == items[i + 1] then placed[#placed + 1] = items[i] end
end
return placed
