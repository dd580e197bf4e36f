-- delete_queue: delete a queue that holds nothing, and its options with it.
--
-- keys   queue    zset     must be empty, as all that holds jobs
--        retry    zset     the same
--        leases   zset     the same
--        waiting  zset     the same
--        dead     zset     the same
--        done     zset     the same
--        seen     zset     ids that are remembered: the same
--        lanes    hash     the same
--        recurring hash    the same
--        schedules hash    the same
--        loads    hash     the same
--        meta     hash     deleted, unless the queue is paused
--        events   stream   deleted
--        wake     list     deleted
--        asked    zset     deleted
--        groups   hash     deleted, and with it each group
--        group    zset     deleted
--        history  hash     deleted
-- args   none
-- reply  deleted
--        used
-- moves  none
-- cost   O(events)
-- full   works
-- uses   more_keys

local held = redis.call(
  'EXISTS', QUEUE, RETRY, LEASES, WAITING, DEAD, DONE, SEEN, LANES, RECURRING, SCHEDULES, LOADS)
local paused = tonumber(redis.call('HGET', META, 'paused') or 0)
if held > 0 or paused > 0 then return 'used' end
local left = { META, EVENTS, WAKE, ASKED, GROUPS, HISTORY }
for _, group in ipairs(redis.call('HKEYS', GROUPS)) do left[#left + 1] = GROUP .. group end
redis.call('UNLINK', unpack(left))
return 'deleted'
