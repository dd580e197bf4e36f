-- delete_all: all bytes of an upload.
--
-- keys   staging:  string   by token: what has come of a chunk
--        chunks:   string   by number: the bytes of a chunk
--        held      hash     chunk -> the token its bytes came under
--        renewed   string   when all of them were last given their time, ms
-- args   tokens    list     of what is only staged
-- stored clear             under this name its calls are remembered, as by releases before
-- reply  <how many chunks>
-- cost   O(chunks held)
-- full   works

local numbers = redis.call('HKEYS', HELD)
for _, number in ipairs(numbers) do redis.call('UNLINK', CHUNKS .. number) end
for _, token in ipairs(tokens) do redis.call('UNLINK', STAGING .. token) end
redis.call('UNLINK', HELD, RENEWED)
return #numbers
