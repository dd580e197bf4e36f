-- ends: how a job's life ends: done or cancelled (kept for a while or gone), or dead.

-- Ids that callers chose are remembered after the job is gone, so that a late repeat of the
-- submit adds nothing. Written with the time to forget when the end comes, not when the
-- record goes: nobody has to be there at that moment.
local function remove(job, keep)
  job.gone = true
  if job.named then job.forget_at = now + keep + options.seen end
end

local function finish(job, state)
  local keep = tonumber(job.keep or options.keep)
  remove(job, keep)
  job.state = state
  if keep > 0 then
    job.gone = false
    job.expire = keep
    set(job, 'ended', now)
    set(job, 'gone_at', now + keep)
    enter(job, state, now + keep)
  end
  leave_lane(job)
end

-- Dead jobs stay where people can see them. With `park` the lane waits for somebody's word.
local function bury(job, reason)
  set(job, 'ended', now)
  set(job, 'reason', reason)
  enter(job, 'dead', now)
  count('died')
  note('dead', job.id)
  if options.lanes ~= 'park' then leave_lane(job) end
end

local function cancel_now(job)
  count('cancelled')
  note('cancel', job.id)
  finish(job, 'cancelled')
end

local function used_up(job)
  return (job.attempts or 0) - (job.max_attempts or options.max_attempts) >= 0
end
