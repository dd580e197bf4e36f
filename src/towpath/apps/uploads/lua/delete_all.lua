-- delete_all: deletes all bytes of an upload.
--
-- keys   staging:  string   by staging token: bytes of a chunk that are not placed yet
--        chunks:   string   by number: the bytes of a chunk
--        held      hash     chunk -> the staging token of its bytes
--        renewed   string   when the expiry of all chunks was last renewed, ms
-- args   tokens    list     staging tokens to delete, too
-- stored clear             its calls are remembered under this name, as in earlier releases
-- reply  <how many chunks>
-- cost   O(chunks held)
-- full   works

local numbers = redis.call('HKEYS', HELD)
for _, number in ipairs(numbers) do redis.call('UNLINK', CHUNKS .. number) end
for _, token in ipairs(tokens) do redis.call('UNLINK', STAGING .. token) end
redis.call('UNLINK', HELD, RENEWED)
return #numbers
