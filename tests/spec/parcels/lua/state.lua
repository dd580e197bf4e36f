-- state: what is known about the parcel, and what time it is.
--
-- keys   state    hash     token, pieces, size, held_at
--        labels   list     what was stored, in order
-- args   none
-- reply  <now> <facts> <labels>
-- cost   O(labels)
-- full   works
-- uses   clock

return { now, redis.call('HGETALL', STATE), redis.call('LRANGE', LABELS, 0, -1) }
