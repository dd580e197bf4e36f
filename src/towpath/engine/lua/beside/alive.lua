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
local known, count = redis.call('HGET', TOLD, worker), redis.call('ZCARD', LIVING)
if not known and count - #silent >= most then return 'WORKERS_FULL' end
for _, name in ipairs(silent) do
  redis.call('ZREM', LIVING, name)
  if name ~= worker then redis.call('HDEL', TOLD, name) end
end
local since = known and string.match(known, '^%d+') or int(now)
redis.call('ZADD', LIVING, now + lasts, worker)
redis.call('HSET', TOLD, worker, since .. ' ' .. about)
return 'ok'
