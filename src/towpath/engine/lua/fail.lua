-- fail: end an attempt without success: the job is delayed for another attempt, or dead.
--
-- keys   leases   zset     leased ids by expiry, ms
--        retry    zset     delayed ids, if it is tried again
--        dead     zset     dead ids, if no attempt is left or wanted
--        job      string   the job's data
--        lock     string   deleted
--        lanes    hash     lane -> its holder: with `skip` the lane goes on meanwhile
-- args   id       text
--        token    text     the fencing token the caller was given
--        delay    ms       until the next attempt; -1 = no other attempt
--        reason   text
--        traceback text    frames and message of the error; '' = none
--        keep_turn int     1 = the next try takes its old place among the ready jobs; left out = behind them
-- reply  delayed
--        dead
--        cancelled
--        JOB_NOT_FOUND
--        JOB_DONE
--        JOB_DEAD
--        JOB_CANCELLED
--        LEASE_LOST <token> <worker> <state>
-- moves  leased -> delayed, leased -> dead, leased -> cancelled
-- cost   O(log n)
-- full   works
-- uses   keys clock calls meta record notify jobs moves lanes ends held send sets plan close answer_each
-- runs   answer_each(fail, first)

local function fail(id, token, delay, reason, traceback, keep_turn)
  local job, refusal = held(id, token)
  if not job then return refusal end
  count('failed')
  note('fail', id)
  if job.cancel then
    cancel_now(job)
    return 'cancelled'
  end
  note_failure(job, reason, traceback)
  if delay < 0 or used_up(job) then
    bury(job, reason)
  else
    set(job, 'reason', reason)
    enter_again(job, now + delay)
    job.keep_turn = keep_turn
    if options.lanes == 'skip' then leave_lane(job) end
  end
  return job.state
end
