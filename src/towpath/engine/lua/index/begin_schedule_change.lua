-- begin_schedule_change: note that a queue's schedules will change: processes that fire them look each second.
--
-- keys   index    hash     queue -> begun or done, its last change, how many are stored; * -> the last change of all
-- args   queue    text     whose schedules
--        change   text     the name of this change
--        more     int      1 = one may be added
--        most     int      so many may be stored in all queues together
-- reply  ok
--        SCHEDULES_FULL
-- stored changing         the name under which its calls are remembered, as by earlier releases
-- cost   O(queues that have schedules)
-- full   works

local total, own = 0, 0
local entries = redis.call('HGETALL', INDEX)
for i = 1, #entries, 2 do
  local count = tonumber(string.match(entries[i + 1], ' (%d+)$') or 0)
  total = total + count
  if entries[i] == queue then own = count end
end
if more == 1 and total >= most then return 'SCHEDULES_FULL' end
redis.call('HSET', INDEX, queue, 'begun ' .. change .. ' ' .. own, '*', change)
return 'ok'
