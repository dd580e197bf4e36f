-- end_schedule_change: note that a change of a queue's schedules is done, or was found to be done.
--
-- keys   index    hash     queue -> begun or done, its last change, how many are stored; * -> the last change of all
-- args   queue    text     whose schedules
--        change   text     which change
--        count    int      how many are stored there now; -1 = as many as before
--        news     text     the last change of all from now on
-- reply  ok
-- stored changed          the name under which its calls are remembered, as by earlier releases
-- cost   O(1)
-- full   works

local kept = redis.call('HGET', INDEX, queue)
local others = redis.call('HLEN', INDEX) - (kept and 1 or 0) - (redis.call('HGET', INDEX, '*') and 1 or 0)
local last, before = string.match(kept or '', '^%l+ (%S+) (%d+)$')
-- If another change has begun since, that one will write its own end.
if not kept or last == change then
  if count < 0 then count = tonumber(before or 0) end
  if count > 0 then
    redis.call('HSET', INDEX, queue, 'done ' .. change .. ' ' .. count)
  else
    redis.call('HDEL', INDEX, queue)
    if others == 0 then
      redis.call('UNLINK', INDEX)
      return 'ok'
    end
  end
end
redis.call('HSET', INDEX, '*', news)
return 'ok'
