-- look: everything about one job that a person may ask.
--
-- keys   job      hash     the record
--        load     string   the payload
--        queue    zset     its rank among the ready
--        retry    zset     how many are delayed
--        leases   zset     when its lease ends
--        lane     zset     its rank in its lane
--        lanes    hash     lane -> its holder
--        meta     hash     paused, last claim, service time
-- args   clock    ms       '' = the server's
--        id       text
-- reply  <record> <payload> <facts>
--        nothing
-- moves  none
-- cost   O(log n)
-- full   works
-- uses   keys clock

local id = ARGV[2]
local flat = redis.call('HGETALL', JOB(id))
local job = {}
for i = 1, #flat, 2 do job[flat[i]] = flat[i + 1] end
if not job.state or (job.gone_at and tonumber(job.gone_at) <= now) then return {} end

local facts = { 'now', now, 'ready', redis.call('ZCARD', QUEUE), 'leased', redis.call('ZCARD', LEASES) }
local function fact(name, value)
  if value then
    facts[#facts + 1] = name
    facts[#facts + 1] = value
  end
end
local about = redis.call('HMGET', META, 'paused', 'asked_at', 'service_ms')
fact('paused', about[1])
fact('asked_at', about[2])
fact('service_ms', about[3])
if job.state == 'ready' then fact('rank', redis.call('ZRANK', QUEUE, id)) end
if job.state == 'leased' then fact('expires', redis.call('ZSCORE', LEASES, id)) end
if job.lane then
  local holder = redis.call('HGET', LANES, job.lane)
  fact('lane_rank', redis.call('ZRANK', LANE(job.lane), id))
  fact('holder', holder)
  fact('holder_state', holder and redis.call('HGET', JOB(holder), 'state'))
  fact('holder_rank', holder and redis.call('ZRANK', QUEUE, holder))
end
return { flat, redis.call('GET', LOAD(id)) or '', facts }
