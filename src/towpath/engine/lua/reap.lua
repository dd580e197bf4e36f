-- reap: give back the jobs whose lease has ended.
--
-- keys   leases   zset     leased ids by expiry, ms
--        queue    zset     ready ids: back at the place they had
--        dead     zset     those with no attempt left
--        done     zset     those that were asked to stop
--        job      string   the job's data
--        lock     string   deleted
-- args   limit    int      at most so many
--        away     ms       since when the caller got no answer from this server; 0 = not known
--        back     ms       when it got one again; 0 = not before this call
--        sent     ms       when the caller sent this call
-- reply  <how many>
-- moves  leased -> ready, leased -> dead, leased -> cancelled
-- cost   O(limit · log n)
-- full   works
-- uses   keys clock calls meta record notify jobs moves lanes ends send sets plan close answer_each
-- runs   answer_each(reap)

local OUTAGE_MS = 2000  -- a shorter silence is no outage; after an outage, workers renew within that time

-- Whether a lease ended while Redis could not be reached: then its worker could not renew it,
-- and may be alive.
local function ended_in_outage(job, expires, away, back, sent)
  if not away or away == 0 or expires <= away then return false end
  if now - sent > OUTAGE_MS and (back == 0 or expires > sent) then return true end
  local claimed = job.claimed or job.token / 1000  -- a token is the time of its claim, in µs
  return back - away > OUTAGE_MS and claimed < back and expires <= back + OUTAGE_MS
end

-- The worker has died, or was silent for too long. A job whose workers die again and again is dead.
-- If it has a record, its next worker gets the number of deaths and asks the row.
local function reap_lost(job)
  local reason = 'LEASE_ENDED: worker ' .. job.worker .. ' was silent until its lease ended'
  note_failure(job, reason)
  set(job, 'deaths', (job.deaths or 0) + 1)
  job.excused = nil
  if used_up(job) then
    bury(job, reason)
  elseif job.deaths >= options.max_deaths and not job.record then
    bury(job, 'WORKERS_DIED: ' .. job.deaths .. ' deliveries ended with the death of the worker')
  else
    set(job, 'reason', reason)
    enter_ready(job)
  end
end

local function reap_job(job, in_outage)
  count('reaped')
  note('reap', job.id)
  if job.cancel then return cancel_now(job) end
  if in_outage then
    job.attempts = job.attempts - 1
    if job.record then job.excused = 1 end  -- the row must not count the attempt, either
    forget_unhandled(job)  -- a worker may have run it
    enter_ready(job)
  else
    reap_lost(job)
  end
end

local function reap(limit, away, back, sent)
  local found = redis.call('ZRANGEBYSCORE', LEASES, '-inf', now, 'WITHSCORES', 'LIMIT', 0, limit)
  local ids = {}
  for i = 1, #found, 2 do ids[#ids + 1] = found[i] end
  read_jobs(ids)
  for i, id in ipairs(ids) do
    local job = jobs[id]
    if job.stored ~= 'leased' then
      set_aside(LEASES, id)
    elseif not job.changed then  -- neither settled nor renewed by this same call
      reap_job(job, ended_in_outage(job, tonumber(found[2 * i]), away, back, sent))
    end
  end
  return #ids
end
