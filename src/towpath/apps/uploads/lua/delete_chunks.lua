-- delete_chunks: bytes that nobody needs any more.
--
-- keys   staging:  string   by token: what has come of a chunk
--        chunks:   string   by number: the bytes of a chunk
--        held      hash     chunk -> the token its bytes came under
-- args   numbers   list     chunks
--        tokens    list     of what is only staged
-- stored discard           under this name its calls are remembered, as by releases before
-- reply  ok
-- cost   O(chunks)
-- full   works

for _, number in ipairs(numbers) do
  redis.call('UNLINK', CHUNKS .. number)
  redis.call('HDEL', HELD, number)
end
for _, token in ipairs(tokens) do redis.call('UNLINK', STAGING .. token) end
return 'ok'
