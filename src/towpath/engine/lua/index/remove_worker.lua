-- remove_worker: a worker has ended.
--
-- keys   living   zset     workers by the moment until which they count as alive, ms
--        told     hash     worker -> when its process began, ms, and its report
-- args   worker   text     its name
-- reply  ok
-- stored gone             the name under which its calls are remembered, as by earlier releases
-- cost   O(log n)
-- full   works

redis.call('ZREM', LIVING, worker)
redis.call('HDEL', TOLD, worker)
return 'ok'
