-- lease: leases a job to a worker, and finds it again for a repeated claim.
--
-- uses   more_keys

-- *counted*: whether the job counts towards the worker's limit.
local function lease_job(job, worker, lease, counted)
  if job.counted then zrem(HELD .. job.worker, job.id) end  -- this call has taken the job from that worker
  local ttl = job.lease or lease
  job.state, job.score, job.ttl = 'leased', now + ttl, ttl
  job.token, job.attempts, job.worker = next_token(), job.attempts + 1, worker
  -- If the token is not the time of the claim, that time is stored.
  job.claimed = not is_time(job.token) and now or nil
  job.counted = counted and 1 or nil
  if counted then zadd(HELD .. worker, job.token, job.id) end
  job.more = job.more or (job.claimed or counted) and {}
  change(job)
  note('claim', job.id)
end

-- The fields of a job that is not plain come last, by name. LEASE_FIELDS comes from the loader.
local function lease_answer(job, payload, expires)
  local answer = { job.id, payload, job.token, job.attempts, expires, job.submitted_at }
  if not job.more then return answer end
  for _, field in ipairs(LEASE_FIELDS) do
    if job[field] then
      answer[#answer + 1] = field
      answer[#answer + 1] = job[field]
    end
  end
  return answer
end

-- What a repeat needs for the same answer: next due, ready left, then id, token, id, token, ...
local function claim_memory(answer)
  local memory = { answer[2], answer[3] }
  for _, lease in ipairs(answer[1]) do
    memory[#memory + 1] = lease[1]
    memory[#memory + 1] = lease[3]
  end
  return memory
end

-- The answer with those leases that are still held under their tokens; claims no new ones.
local function recall_claim(memory)
  local leases = {}
  for i = 3, #memory, 2 do
    local job = read_job(memory[i])
    local held = job.state == 'leased' and job.token == memory[i + 1]
    local payload = held and (job.payload or redis.call('GET', LOAD .. job.id))
    if payload then
      local expires = tonumber(redis.call('ZSCORE', LEASES, job.id))
      leases[#leases + 1] = lease_answer(job, payload, expires)
    end
  end
  return { leases, memory[1], memory[2], now }
end
