-- reap: give back the jobs whose lease has ended.
--
-- keys   leases   zset     leased ids by expiry, ms
--        queue    zset     ready ids: back at the place they had
--        dead     zset     those with no attempt left
--        done     zset     those that were asked to stop
--        job      string   the record
--        lock     string   deleted
-- args   limit    int      at most so many
-- reply  <how many>
-- moves  leased -> ready, leased -> dead, leased -> cancelled
-- cost   O(limit · log n)
-- full   works
-- uses   keys clock calls meta record tell jobs moves lanes ends send sets plan close each
-- runs   each(reap)

local function reap_job(job)
  count('reaped')
  note('reap', job.id)
  local reason = 'LEASE_ENDED: worker ' .. job.worker .. ' was silent until its lease ended'
  if job.cancel then return cancel_now(job) end
  note_failure(job, reason)
  if used_up(job) then
    bury(job, reason)
  else
    set(job, 'reason', reason)
    enter_ready(job)
  end
end

local function reap(limit)
  local ids = redis.call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, limit)
  read_jobs(ids)
  for _, id in ipairs(ids) do
    local job = jobs[id]
    if job.stored ~= 'leased' then
      set_aside(LEASES, id)
    elseif not job.changed then  -- neither settled nor renewed by this very call
      reap_job(job)
    end
  end
  return #ids
end
