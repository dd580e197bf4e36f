-- held: whether a worker still holds a lease. Equality with the stored token decides, never a clock:
-- a lease counts until its job is reaped or claimed again, even after its end.

local ENDED = { done = 'JOB_DONE', dead = 'JOB_DEAD', cancelled = 'JOB_CANCELLED' }

-- Returns the job; or nil and the answer that refuses the call.
local function held(id, token)
  local job = read_job(id)
  local state = job.state
  if state == 'leased' and job.token == token then return job end
  if not state or state == 'gone' then return nil, { 'JOB_NOT_FOUND' } end
  if ENDED[state] then return nil, { ENDED[state] } end
  return nil, { 'LEASE_LOST', job.token, job.worker, state }
end
