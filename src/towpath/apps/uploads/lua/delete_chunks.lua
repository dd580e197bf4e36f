-- delete_chunks: deletes chunks and staged bytes.
--
-- keys   staging:  string   by staging token: bytes of a chunk that are not placed yet
--        chunks:   string   by number: the bytes of a chunk
--        held      hash     chunk -> the staging token of its bytes
-- args   numbers   list     chunks
--        tokens    list     staging tokens
-- stored discard           its calls are remembered under this name, as in earlier releases
-- reply  ok
-- cost   O(chunks)
-- full   works

for _, number in ipairs(numbers) do
  redis.call('UNLINK', CHUNKS .. number)
  redis.call('HDEL', HELD, number)
end
for _, token in ipairs(tokens) do redis.call('UNLINK', STAGING .. token) end
return 'ok'
