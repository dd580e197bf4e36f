-- job_facts: everything about one job, for people.
--
-- keys   job      string   the job's data
--        load     string   the payload, if it is large
--        result   string   the result
--        queue    zset     its rank among the ready
--        selector zset     the same among those of its selector
--        asked    zset     when its selector was last asked for
--        retry    zset     how many are delayed
--        leases   zset     when its own lease ends, and its lane holder's; how many leases have not ended
--        lane     zset     its rank in its lane
--        lanes    hash     lane -> its holder
--        meta     hash     paused, last claim, service time
-- args   clock    ms       '' = Redis's clock
--        id       text
-- reply  <data> <payload> <result> <facts>
--        nothing
-- moves  none
-- cost   O(log n)
-- full   works
-- uses   keys layout clock record more_keys numbers

local id = ARGV[2]
local text = redis.call('GET', JOB .. id)
local job = text and decode(id, text)
if not (job and job.stored) or (job.gone_at and job.gone_at <= now) then return {} end

local facts = { 'now', now, 'leased', redis.call('ZCOUNT', LEASES, '(' .. int(now), '+inf') }
local function fact(name, value)
  if value then
    facts[#facts + 1] = name
    facts[#facts + 1] = value
  end
end
local numbers = stored_numbers()
fact('paused', numbers.paused)
fact('asked_at', numbers.asked_at)
fact('service_ms', numbers.service_ms > 0 and tostring(numbers.service_ms))
local ready_set = job.selector and SELECTOR .. job.selector or QUEUE
fact('selector', job.selector)
fact('asked_for', job.selector and redis.call('ZSCORE', ASKED, job.selector))
if job.state == 'ready' then fact('rank', redis.call('ZRANK', ready_set, id)) end
if job.state == 'leased' then fact('expires', redis.call('ZSCORE', LEASES, id)) end
if job.lane then
  local holder = redis.call('HGET', LANES, job.lane)
  local stored = holder and redis.call('GET', JOB .. holder)
  local head = stored and decode(holder, stored)
  fact('lane_rank', redis.call('ZRANK', LANE .. job.lane, id))
  fact('holder', head and head.record or holder)
  fact('holder_state', head and head.state)
  fact('holder_expires', holder and redis.call('ZSCORE', LEASES, holder))
end
local payload = job.payload or redis.call('GET', LOAD .. id) or ''
return { without_payload(text), payload, redis.call('GET', RESULT .. id) or '', facts }
