-- begin: note that all offered issues are in the queue.
--
-- keys   told     string   exists = it was noted, and Redis has not lost it since
-- args   none
-- reply  ok
-- cost   O(1)
-- full   refused

redis.call('SET', TOLD, '1')
return 'ok'
