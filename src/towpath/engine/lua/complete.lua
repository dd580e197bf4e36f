-- complete: end a job under a lease that is still held.
--
-- keys   leases   zset     leased ids by expiry, ms
--        done     zset     finished ids, if they are kept
--        job      string   the record: kept for its retention, or deleted
--        load     string   the payload, if it is large: the same
--        result   string   what the worker returned, if it is kept
--        lock     string   deleted
--        lanes    hash     lane -> its holder: the next one of the lane comes forward
--        seen     zset     the id, if a caller chose it
-- args   id       text
--        token    text     the fencing token the caller was given
--        result   bytes    may be empty
-- reply  done
--        JOB_NOT_FOUND
--        JOB_DONE
--        JOB_DEAD
--        JOB_CANCELLED
--        LEASE_LOST <token> <worker> <state>
-- moves  leased -> done
-- cost   O(log n)
-- full   works
-- short  plain_complete
-- uses   keys clock calls meta record notify jobs moves lanes ends held send sets plan close answer_each
-- runs   answer_each(complete, first)

-- A moving average of how long jobs are worked on, from which waits are estimated.
local function learn_service_time(job)
  local took = math.max(0, now - (job.claimed or job.token / 1000))
  local mean = meta.service_ms > 0 and meta.service_ms or took
  set_meta('service_ms', mean + (took - mean) * 0.05)
end

local function complete(id, token, result)
  local job, refusal = held(id, token)
  if not job then
    local ended = jobs[id]
    return ended.token == token and (ended.state == 'done' or ended.completed) and 'done' or refusal
  end
  learn_service_time(job)
  job.completed = true
  if result ~= '' then job.result = result end
  count('completed')
  note('complete', id)
  finish(job, 'done')
  return 'done'
end
