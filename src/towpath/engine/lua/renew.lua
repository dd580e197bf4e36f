-- renew: hold a job for longer, under the same token.
--
-- keys   leases   zset     leased ids by expiry, ms
--        job      string   the job's data
--        lock     string   the copy of the lease: its time to live is set again
-- args   id       text
--        token    text     the fencing token the caller was given
--        ttl      ms       from now
-- reply  leased <expiry>
--        CANCEL_REQUESTED <expiry>
--        JOB_NOT_FOUND
--        JOB_DONE
--        JOB_DEAD
--        JOB_CANCELLED
--        LEASE_LOST <token> <worker> <state>
-- moves  none
-- cost   O(log n)
-- full   works
-- uses   keys clock calls meta record notify jobs moves lanes held send sets plan close answer_each
-- runs   answer_each(renew, first)

local function renew(id, token, ttl)
  local job, refusal = held(id, token)
  if not job then return refusal end
  job.ttl, job.score = ttl, now + ttl
  change(job)
  -- Also after a request to cancel: while its worker is alive, no other worker may run the job.
  return { job.cancel and 'CANCEL_REQUESTED' or 'leased', job.score }
end
