-- note_offers: note that all offered issues are in the queue.
--
-- keys   told     string   exists = it was noted, and Redis has not lost it since
-- args   none
-- reply  ok
-- stored begin             its calls are remembered under this name, as in earlier releases
-- cost   O(1)
-- full   refused

redis.call('SET', TOLD, '1')
return 'ok'
