-- retry: give a dead job its attempts back.
--
-- keys   dead     zset     dead ids by time of death
--        queue    zset     ready ids: behind those ready now
--        waiting  zset     if its lane went on without it
--        lane     zset     the same, at its submission tick
--        lanes    hash     lane -> its holder; a parked lane goes on
--        job      string   the job's data
-- args   id       text
-- reply  ready
--        waiting
--        JOB_NOT_FOUND
--        JOB_NOT_DEAD <state>
--        JOB_HAS_RECORD <record>
-- moves  dead -> ready, dead -> waiting
-- cost   O(log n)
-- full   works
-- uses   keys clock calls meta record notify jobs moves lanes send sets plan close answer_each
-- runs   answer_each(retry, first)

local function retry(id)
  local job = read_job(id)
  if not job.state or job.state == 'gone' then return { 'JOB_NOT_FOUND' } end
  if job.record then return { 'JOB_HAS_RECORD', job.record } end
  if job.state ~= 'dead' then return { 'JOB_NOT_DEAD', job.state } end
  job.asked_due = job.asked_due or job.due
  job.attempts, job.deaths, job.ended, job.due, job.cancel = 0, nil, nil, nil, nil
  count('retried')
  note('retry', id)
  if take_lane(job) then enter_behind(job) end
  return job.state
end
