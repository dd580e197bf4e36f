-- ends: how a job's life ends: done or cancelled (kept for a while or gone), or dead.

-- Ids that callers chose are remembered after the job is gone, so that a late repeat of the
-- submit adds nothing. The id and the time to forget it are stored when the job ends, because no
-- script runs when the job's data expires.
local function remember_id(job, keep)
  if job.named then job.forget_at = now + keep + options.remember end
end

local function delete_job(job)
  remember_id(job, 0)
  job.state = 'gone'
  change(job)
end

local function finish(job, state)
  forget_unhandled(job)
  local keep = job.keep or options.keep
  if keep > 0 then
    remember_id(job, keep)
    job.expire = keep
    set(job, 'ended', now)
    set(job, 'gone_at', now + keep)
    enter(job, state, now + keep)
  else
    delete_job(job)
  end
  leave_lane(job)
end

-- Dead jobs are kept for people to see. With `park`, the lane waits until one decides.
local function bury(job, reason)
  enter_dead(job, reason)
  if options.lanes ~= 'park' then leave_lane(job) end
end

local function cancel_now(job)
  count('cancelled')
  note('cancel', job.id)
  finish(job, 'cancelled')
end

-- Whether no attempt is left. Without a limit of the job or the queue, a job that holds its lane
-- meanwhile gives up earlier. The loader replaces the names of constants and options by numbers.
local function used_up(job)
  local most = job.max_attempts
  if not most and options.max_attempts > 0 then most = options.max_attempts end
  if not most then
    most = job.lane and options.lanes ~= 'skip' and LANE_ATTEMPTS or ATTEMPTS
  end
  return job.attempts >= most
end
