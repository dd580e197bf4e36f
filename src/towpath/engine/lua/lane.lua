-- lane: the head of a lane, how many jobs wait behind it, and how many of them before one job.
--
-- keys   lanes    hash     lane -> its holder
--        lane     zset     ids behind the holder
--        leases   zset     when the holder's lease ends
--        job      string   the holder's data
-- args   clock    ms       '' = Redis's clock
--        lane     text
--        id       text     '' = of no job
-- reply  <holder> <state> <waiting> <rank>
-- moves  none
-- cost   O(log n)
-- full   works
-- uses   keys layout clock record

local lane, id = ARGV[2], ARGV[3]
local holder = redis.call('HGET', LANES, lane)
local text = holder and redis.call('GET', JOB .. holder)
local job = text and decode(holder, text)
local state = job and job.state or ''

-- A lease that has ended holds nothing, even if the job was not reaped yet.
if state == 'leased' and tonumber(redis.call('ZSCORE', LEASES, holder) or 0) <= now then
  state = 'ready'
end
local rank = redis.call('ZRANK', LANE .. lane, id)
return { job and job.record or holder or '', state, redis.call('ZCARD', LANE .. lane), rank or -1 }
