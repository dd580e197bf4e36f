-- plan: turns the changes in memory into commands, key by key. Nothing is written yet.
--
-- uses   more_keys

local puts, unlinks = {}, {}         -- key, value, key, value, ...; keys to be deleted
local fresh, locks = {}, {}
local kept = {}                      -- {job, its data}: ended jobs that are kept for a time

local function put(key, value)
  local n = #puts
  puts[n + 1] = key
  puts[n + 2] = value
end

-- Plan the set of one lane or selector, which has only jobs in the state *place*.
local function plan_part(job, key, place)
  if job.stored == place and job.state ~= place then
    zrem(key, job.id)
  elseif job.state == place and job.score then
    zadd(key, job.score, job.id)
  end
end

-- The job no longer counts towards its worker's limit.
local function leave_worker(job)
  if job.counted then zrem(HELD .. job.worker, job.id) end
  job.counted = nil
end

local function plan_removal(job, id)
  local n = #unlinks
  unlinks[n + 1] = JOB .. id
  if not job.payload then unlinks[#unlinks + 1] = LOAD .. id end
  if job.gone_at then unlinks[#unlinks + 1] = RESULT .. id end
end

local function plan_kept(job, id)
  kept[#kept + 1] = { job, encode(job) }
  if not job.payload then fresh[#fresh + 1] = LOAD .. id end
  if job.result then fresh[#fresh + 1] = RESULT .. id end
end

-- Store a new payload that is large, or delete the large one that it replaces.
local function plan_payload(job, id)
  if job.large then
    put(LOAD .. id, job.large)
    fresh[#fresh + 1] = LOAD .. id
  elseif job.replaces_large then
    unlinks[#unlinks + 1] = LOAD .. id
  end
end

local function plan_job(job)
  local id, stored, state = job.id, job.stored, job.state
  local from, to = ZSET[stored], ZSET[state]
  if from and from ~= to then zrem(from, id) end
  if to and job.score then zadd(to, job.score, id) end
  if job.lane then plan_part(job, LANE .. job.lane, 'waiting') end
  if job.selector then plan_part(job, SELECTOR .. job.selector, 'ready') end
  if job.group then plan_group(job) end
  if job.forget_at then zadd(SEEN, job.forget_at, id) end
  if job.ttl and state == 'leased' then
    locks[#locks + 1] = job
    fresh[#fresh + 1] = LOCK .. id
  elseif stored == 'leased' and state ~= 'leased' then
    unlinks[#unlinks + 1] = LOCK .. id
    leave_worker(job)
  end
  if state == 'gone' then return plan_removal(job, id) end
  if not stored then fresh[#fresh + 1] = JOB .. id end
  if job.expire then return plan_kept(job, id) end
  plan_payload(job, id)
  put(JOB .. id, encode(job))
end
