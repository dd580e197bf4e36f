-- lease: a job in a worker's hands, and how a repeated claim finds it again.

local MORE = { 'priority', 'lane', 'due', 'max_attempts', 'retry' }

local function lease_job(job, worker, lease)
  local put, attempts, token = job.put, (job.attempts or 0) + 1, next_token()
  job.state, job.token, job.attempts, job.worker = 'leased', token, attempts, worker
  job.ttl = tonumber(job.lease or lease)
  job.score = now + job.ttl
  local fields = { 'state', 'leased', 'token', token, 'attempts', attempts, 'worker', worker }
  if #put == 0 then
    job.put = fields
  else
    for _, it in ipairs(fields) do put[#put + 1] = it end
  end
  note('claim', job.id)
end

-- What is not plain about a job comes last, by name.
local function lease_answer(job, load, expires)
  local answer = { job.id, load, job.token, job.attempts, expires, job.at }
  for _, field in ipairs(MORE) do
    if job[field] then
      answer[#answer + 1] = field
      answer[#answer + 1] = job[field]
    end
  end
  return answer
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
    if job.state == 'leased' and tonumber(job.token) == lease[2] and load then
      leases[#leases + 1] = lease_answer(job, load, redis.call('ZSCORE', LEASES, job.id))
    end
  end
  return { leases, 0, 0, now }
end
