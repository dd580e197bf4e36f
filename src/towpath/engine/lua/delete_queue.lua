-- delete_queue: delete a queue that holds nothing, and its options with it.
--
-- keys   queue    zset     must be empty, as all keys with jobs
--        retry    zset     the same
--        leases   zset     the same
--        waiting  zset     the same
--        dead     zset     the same
--        done     zset     the same
--        seen     zset     ids that are remembered: the same, unless forced
--        lanes    hash     the same
--        recurring hash    the same
--        schedules hash    the same
--        loads    hash     the same
--        meta     hash     deleted, unless the queue is paused and this is not forced
--        events   stream   deleted
--        wake     list     deleted
--        asked    zset     deleted; when selectors were last asked for
--        groups   hash     deleted, and with it each group
--        group    zset     deleted
--        history  hash     deleted
-- args   clock    ms       '' = Redis's clock
--        forced   int      1 = neither remembered ids nor a pause keep the queue
--        unused_for ms     a queue that was used within this time stays; 0 = delete it anyway
--        version  text     a queue whose options have another version stays; '' = any version
-- reply  deleted
--        used
-- moves  none
-- cost   O(events)
-- full   works
-- uses   keys layout clock more_keys numbers

local forced, unused_for, version = ARGV[2] == '1', tonumber(ARGV[3]), ARGV[4]
local held = redis.call(
  'EXISTS', QUEUE, RETRY, LEASES, WAITING, DEAD, DONE, LANES, RECURRING, SCHEDULES, LOADS)
if held > 0 then return 'used' end

local stored, numbers = redis.call('HGET', META, 'version'), stored_numbers()
if not forced and (numbers.paused > 0 or redis.call('EXISTS', SEEN) > 0) then return 'used' end
if version ~= '' and stored ~= version then return 'used' end

-- The tick is the time of the last submit, the token that of the last claim in microseconds. Both
-- may be ahead of the clock: then the queue stays longer.
local asked_for = redis.call('ZRANGE', ASKED, -1, -1, 'WITHSCORES')[2]
local used_at = math.max(
  numbers.tick, numbers.token / 1000, numbers.asked_at, tonumber(asked_for or 0))
if unused_for > 0 and used_at == 0 and stored then
  -- A queue that was only declared has no time of a use: its time begins with the first call of this.
  local since = redis.call('HGET', META, 'unused_since')
  if not since then redis.pcall('HSET', META, 'unused_since', now) end
  used_at = tonumber(since or now)
end
if unused_for > 0 and used_at > now - unused_for then return 'used' end

local left = { META, SEEN, EVENTS, WAKE, ASKED, GROUPS, HISTORY }
for _, group in ipairs(redis.call('HKEYS', GROUPS)) do left[#left + 1] = GROUP .. group end
redis.call('UNLINK', unpack(left))
return 'deleted'
