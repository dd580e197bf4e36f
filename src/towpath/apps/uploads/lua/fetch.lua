-- fetch: some bytes of a chunk, whether it is placed or still staged.
--
-- keys   staging:  string   by staging token: bytes of a chunk that are not placed yet
--        chunks:   string   by number: the bytes of a chunk
--        held      hash     chunk -> the staging token of its bytes
-- args   number    int      which chunk
--        token     text     staging token of its bytes
--        start     int      first byte
--        size      int      how many
-- reply  <bytes>; empty = gone
-- cost   O(size)
-- full   works

if redis.call('HGET', HELD, number) == token then
  return redis.call('GETRANGE', CHUNKS .. number, start, start + size - 1)
end
return redis.call('GETRANGE', STAGING .. token, start, start + size - 1)
