-- alive: a worker tells that it lives, and what it does.
--
-- keys   living   zset     workers by the moment until which they count as alive, ms
--        told     hash     worker -> since when it is there, ms, and what it says of itself
-- args   worker   text     its name
--        about    text     what it says of itself
--        lasts    int      ms for which it counts as alive
--        most     int      so many workers are known at most
-- reply  ok
--        WORKERS_FULL
-- cost   O(log n)
-- full   works
-- uses   clock

local FORGET_MOST = 100
local silent = redis.call('ZRANGEBYSCORE', LIVING, '-inf', now, 'LIMIT', 0, FORGET_MOST)
local known, count = redis.call('ZSCORE', LIVING, worker), redis.call('ZCARD', LIVING)
if not known and count - #silent >= most then return 'WORKERS_FULL' end
-- One that comes back after its silence begins anew, whether or not somebody has forgotten it.
local told = known and tonumber(known) > now and redis.call('HGET', TOLD, worker)
local since = told and string.match(told, '^%d+') or int(now)
for _, name in ipairs(silent) do
  redis.call('ZREM', LIVING, name)
  redis.call('HDEL', TOLD, name)
end
redis.call('ZADD', LIVING, now + lasts, worker)
redis.call('HSET', TOLD, worker, since .. ' ' .. about)
return 'ok'
