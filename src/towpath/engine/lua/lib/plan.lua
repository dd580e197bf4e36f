-- plan: what the changes in memory come to, key by key. Still nothing is written.
--
-- uses   more_keys

local puts, unlinks = {}, {}         -- key, value, key, value, ...; keys to be removed
local fresh, locks, expiries = {}, {}, {}

local function put(key, value)
  local n = #puts
  puts[n + 1] = key
  puts[n + 2] = value
end

local function plan_lane(job, stored, state)
  if stored == 'waiting' and state ~= 'waiting' then
    zrem(LANE .. job.lane, job.id)
  elseif state == 'waiting' and stored ~= 'waiting' then
    zadd(LANE .. job.lane, job.tick, job.id)
  end
end

-- A ready job is in the set of all, and in that of its selector at the same place.
local function plan_selector(job, stored, state)
  if stored == 'ready' and state ~= 'ready' then
    zrem(SELECTOR .. job.selector, job.id)
  elseif state == 'ready' and job.score then
    zadd(SELECTOR .. job.selector, job.score, job.id)
  end
end

-- A worker's limit counts the job no longer.
local function leave_worker(job)
  if job.counted then zrem(HELD .. job.worker, job.id) end
  job.counted = nil
end

local function plan_removal(job, id)
  local n = #unlinks
  unlinks[n + 1] = JOB .. id
  unlinks[n + 2] = LOAD .. id
  if job.gone_at then unlinks[n + 3] = RESULT .. id end
end

local function plan_rest(job, id)
  if job.result then
    fresh[#fresh + 1] = RESULT .. id
    put(RESULT .. id, job.result)
  end
  if job.expire then
    fresh[#fresh + 1] = LOAD .. id
    expiries[#expiries + 1] = job
  end
end

local function plan_job(job)
  local id, stored, state = job.id, job.stored, job.state
  local from, to = ZSET[stored], ZSET[state]
  if from and from ~= to then zrem(from, id) end
  if to and job.score then zadd(to, job.score, id) end
  if job.lane then plan_lane(job, stored, state) end
  if job.selector then plan_selector(job, stored, state) end
  if job.forget_at then zadd(SEEN, job.forget_at, id) end
  if job.ttl and state == 'leased' then
    locks[#locks + 1] = job
    fresh[#fresh + 1] = LOCK .. id
  elseif stored == 'leased' and state ~= 'leased' then
    unlinks[#unlinks + 1] = LOCK .. id
    leave_worker(job)
  end
  if state == 'gone' then return plan_removal(job, id) end
  put(JOB .. id, encode(job))
  if not stored then fresh[#fresh + 1] = JOB .. id end
  plan_rest(job, id)
end
