-- find_placed: which of these chunks are placed, and not only staged.
--
-- keys   held      hash     chunk -> the staging token of its bytes
-- args   items     list     chunk, staging token, …
-- stored placed            its calls are remembered under this name, as in earlier releases
-- reply  <chunk, …>
-- cost   O(chunks)
-- full   works

local placed = {}
for i = 1, #items, 2 do
  if redis.call('HGET', HELD, items[i]) == items[i + 1] then placed[#placed + 1] = items[i] end
end
return placed
