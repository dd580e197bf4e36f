-- fetch: some bytes of a chunk, whether it was put into its place or not.
--
-- keys   staging:  string   by token: what has come of a chunk
--        chunks:   string   by number: the bytes of a chunk
--        held      hash     chunk -> the token its bytes came under
-- args   number    int      which chunk
--        token     text     its bytes came under
--        start     int      from where
--        size      int      how many
-- reply  <bytes>; empty = gone
-- cost   O(size)
-- full   works

if redis.call('HGET', HELD, number) == token then
  return redis.call('GETRANGE', CHUNKS .. number, start, start + size - 1)
end
return redis.call('GETRANGE', STAGING .. token, start, start + size - 1)
