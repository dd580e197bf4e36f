-- chart: which chunks were received, which parts have begun, and which are stored.
--
-- keys   state     hash     the published fields, and those of the plan
--        received  string   a bit per chunk that is in Redis or stored
--        pending   hash     chunk -> its staging token, until its part is stored
--        fill      hash     part -> how many of its chunks were received, until it is stored
--        turns     hash     part -> its turn: how often it lost chunks
--        etags     hash     part -> ETag, size and checksum, from the object store
-- args   none
-- reply  <fields of the state> <a bit per chunk> <chunk, token, …> <part, chunks, …>
--        <part, turn, …> <part, entry, …>
-- cost   O(chunks)
-- full   works

return {
  redis.call('HGETALL', STATE), redis.call('GET', RECEIVED) or '', redis.call('HGETALL', PENDING),
  redis.call('HGETALL', FILL), redis.call('HGETALL', TURNS), redis.call('HGETALL', ETAGS),
}
