-- progress: leave a note on a job that is being worked on.
--
-- keys   job      string   the job's data
-- args   id       text
--        token    text     the fencing token the caller was given
--        note     bytes    replaces the last one
-- reply  leased
--        CANCEL_REQUESTED
--        JOB_NOT_FOUND
--        JOB_DONE
--        JOB_DEAD
--        JOB_CANCELLED
--        LEASE_LOST <token> <worker> <state>
-- moves  none
-- cost   O(1)
-- full   refused
-- uses   keys clock calls meta record notify jobs moves lanes held send sets plan close answer_each
-- runs   answer_each(progress, first)

local function progress(id, token, text)
  local job, refusal = held(id, token)
  if not job then return refusal end
  set(job, 'progress', text)
  change(job)
  note('progress', id)
  return job.cancel and 'CANCEL_REQUESTED' or 'leased'
end
