-- chart: which chunks are here or in the store, which parts are begun, and which are stored.
--
-- keys   state     hash     the document's fields, and those of the plan
--        received  string   a bit per chunk that is here or in the store
--        pending   hash     chunk -> the token its bytes came under, until its part is stored
--        fill      hash     part -> how many of its chunks are here
--        turns     hash     part -> how often it was begun anew
--        etags     hash     part -> ETag, size and checksum, as the store answered
-- args   none
-- reply  <fields of the state> <a bit per chunk> <chunk, token, …> <part, chunks, …>
--        <part, turn, …> <part, entry, …>
-- cost   O(chunks)
-- full   works

return {
  redis.call('HGETALL', STATE), redis.call('GET', RECEIVED) or '', redis.call('HGETALL', PENDING),
  redis.call('HGETALL', FILL), redis.call('HGETALL', TURNS), redis.call('HGETALL', ETAGS),
}
