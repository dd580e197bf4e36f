-- release: give a job back; the attempt does not count, unless the job was cancelled meanwhile.
--
-- keys   leases   zset     leased ids by expiry, ms
--        queue    zset     ready ids: back at the place it had
--        retry    zset     delayed ids, if a delay is asked for
--        job      string   the job's data
--        lock     string   deleted
-- args   id       text
--        token    text     the fencing token the caller was given
--        delay    ms       0 = at once
--        unhandled text    why the worker could not run it; left out = it could
--        anew     int      1 = it counts as unhandled from now on; left out = since the first such release
-- reply  ready
--        delayed
--        cancelled
--        JOB_NOT_FOUND
--        JOB_DONE
--        JOB_DEAD
--        JOB_CANCELLED
--        LEASE_LOST <token> <worker> <state>
-- moves  leased -> ready, leased -> delayed, leased -> cancelled
-- cost   O(log n)
-- full   works
-- uses   keys clock calls meta record notify jobs moves lanes ends held send sets plan close answer_each
-- runs   answer_each(release, first)

-- A worker that can't run the job leaves it to others, which see since when it was unhandled.
local function note_unhandled(job, reason, anew)
  set(job, 'unhandled_since', not anew and job.unhandled_since or now)
  set(job, 'unhandled', reason)
  count('unhandled')
end

local function release(id, token, delay, unhandled, anew)
  local job, refusal = held(id, token)
  if not job then return refusal end
  count('released')
  note('release', id)
  if job.cancel then
    cancel_now(job)
    return 'cancelled'
  end
  job.attempts = job.attempts - 1
  if unhandled then note_unhandled(job, unhandled, anew) else forget_unhandled(job) end
  if delay > 0 then
    enter_again(job, now + delay)
  else
    enter_ready(job)
  end
  return job.state
end
