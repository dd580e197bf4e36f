-- report_worker: a worker reports that it is alive, and what it does.
--
-- keys   living   zset     workers by the moment until which they count as alive, ms
--        told     hash     worker -> when its process began, ms, and its report
-- args   worker   text     its name
--        about    text     its report
--        age      int      ms since its process began
--        lasts    int      ms for which it counts as alive
--        most     int      so many workers are stored at most
-- reply  ok
--        WORKERS_FULL
-- stored alive            the name under which its calls are remembered, as by earlier releases
-- cost   O(log n)
-- full   works
-- uses   clock

local FORGET_MOST = 100
local silent = redis.call('ZRANGEBYSCORE', LIVING, '-inf', now, 'LIMIT', 0, FORGET_MOST)
local known, count = redis.call('ZSCORE', LIVING, worker), redis.call('ZCARD', LIVING)
if not known and count - #silent >= most then return 'WORKERS_FULL' end
for _, name in ipairs(silent) do
  redis.call('ZREM', LIVING, name)
  redis.call('HDEL', TOLD, name)
end
redis.call('ZADD', LIVING, now + lasts, worker)
redis.call('HSET', TOLD, worker, int(math.max(now - age, 0)) .. ' ' .. about)
return 'ok'
