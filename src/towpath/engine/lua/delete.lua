-- delete: delete a job that has ended, before its time.
--
-- keys   dead     zset     dead ids by time of death
--        done     zset     done and cancelled ids
--        job      string   the job's data
--        load     string   the payload, if it is large
--        result   string   the result
--        lanes    hash     lane -> its holder; a lane parked by this job goes on
--        seen     zset     the id, if a caller chose it
-- args   id       text
--        by_record int     1 = called for the record of the job; otherwise a job with a record is refused
-- reply  gone
--        JOB_NOT_FOUND
--        JOB_OPEN <state>
--        JOB_HAS_RECORD <record>
-- moves  done -> gone, cancelled -> gone, dead -> gone
-- cost   O(log n)
-- full   works
-- uses   keys clock calls meta record notify jobs moves lanes ends send sets plan close answer_each
-- runs   answer_each(delete, first)

local function delete(id, by_record)
  local job = read_job(id)
  if not job.state or job.state == 'gone' then return { 'JOB_NOT_FOUND' } end
  if job.record and by_record ~= 1 then return { 'JOB_HAS_RECORD', job.record } end
  if not (ZSET[job.state] == DONE or job.state == 'dead') then
    return { 'JOB_OPEN', job.state }
  end
  count('deleted')
  note('delete', id)
  delete_job(job)
  leave_lane(job)
  return 'gone'
end
