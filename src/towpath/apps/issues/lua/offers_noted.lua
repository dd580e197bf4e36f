-- offers_noted: whether Redis still has the note that all offered issues are in the queue.
--
-- keys   told     string   exists = it was noted, and Redis has not lost it since
-- args   none
-- reply  <1 if it exists, else 0>
-- stored epoch             the name of this script in earlier releases
-- cost   O(1)
-- full   works

return redis.call('EXISTS', TOLD)
