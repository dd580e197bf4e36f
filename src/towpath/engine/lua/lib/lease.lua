-- lease: a job in a worker's hands, and how a repeated claim finds it again.

local function lease_job(job, worker, lease)
  job.ttl = tonumber(job.lease or lease)
  set(job, 'token', next_token())
  set(job, 'attempts', (job.attempts or 0) + 1)
  set(job, 'worker', worker)
  set(job, 'claimed', now)
  enter(job, 'leased', now + job.ttl)
  note('claim', job.id)
end

local function lease_answer(job, load)
  return {
    job.id, load, job.token, tonumber(job.attempts), job.claimed + job.ttl, tonumber(job.at),
    tonumber(job.priority or 50), job.lane or '', tonumber(job.due or 0),
    tonumber(job.max_attempts or options.max_attempts), job.retry or '',
  }
end

-- What a repeat needs to find the same leases again.
local function claim_memory(answer)
  local held = {}
  for i, lease in ipairs(answer[1]) do held[i] = { lease[1], lease[3] } end
  return held
end

-- Those of the leases that are still held under their tokens; never new ones.
local function recall_claim(memory)
  local leases = {}
  for _, lease in ipairs(memory) do
    local job = read_job(lease[1])
    local load = redis.call('GET', LOAD(lease[1]))
    if job.state == 'leased' and job.token == lease[2] and load then
      job.ttl = redis.call('ZSCORE', LEASES, job.id) - job.claimed
      leases[#leases + 1] = lease_answer(job, load)
    end
  end
  return { leases, 0, 0, now }
end
