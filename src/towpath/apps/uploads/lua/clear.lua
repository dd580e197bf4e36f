-- clear: all bytes of an upload.
--
-- keys   chunks:   string   by number: the bytes of a chunk
--        held      hash     chunk -> the token its bytes came under
--        renewed   string   when all of them were last given their time, ms
-- args   none
-- reply  <how many chunks>
-- cost   O(chunks held)
-- full   works

local numbers = redis.call('HKEYS', HELD)
for _, number in ipairs(numbers) do redis.call('UNLINK', CHUNKS .. number) end
redis.call('UNLINK', HELD, RENEWED)
return #numbers
