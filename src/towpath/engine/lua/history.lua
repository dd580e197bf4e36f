-- history: how a queue stood at the beginning of each minute or hour in which it was changed.
--
-- keys   history  hash     m<hour> or h<day> -> rows: minute or hour, totals, how many in which state
--        meta     hash     the totals now
--        queue    zset     how many are ready now
--        job      string   the oldest of those
--        retry    zset     the same of the others
--        waiting  zset     the same
--        leases   zset     the same
--        dead     zset     the same
-- args   clock    ms       '' = Redis's clock
--        kind     text     m = by the minute, h = by the hour
--        span     int      ms that a field covers
--        count    int      so many fields, the last ones
-- reply  <now> <totals and counts now> <beginning of a field in ms, its rows, ...>
-- moves  none
-- cost   O(count)
-- full   works
-- uses   keys layout clock more_keys oldest numbers

local kind, span, count = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local last, names, rows = math.floor(now / span), {}, {}
for i = 1, count do names[i] = kind .. int(last - count + i) end
for i, text in ipairs(redis.call('HMGET', HISTORY, unpack(names))) do
  if text then
    rows[#rows + 1] = int((last - count + i) * span)
    rows[#rows + 1] = text
  end
end
local stored = stored_numbers()
local numbers = { stored.submitted, stored.completed, stored.failed, stored.died }
for _, key in ipairs({ QUEUE, RETRY, WAITING, LEASES, DEAD }) do
  numbers[#numbers + 1] = redis.call('ZCARD', key)
end
local oldest = oldest_ready()
numbers[10] = oldest and 1 + math.max(0, math.floor((now - oldest) / 1000)) or 0
return { now, numbers, rows }
