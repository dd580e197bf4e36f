-- cancel: end a job that has not ended; one that is being worked on is asked to stop.
--
-- keys   queue    zset     ready ids
--        retry    zset     delayed ids
--        waiting  zset     ids behind the head of their lane
--        lane     zset     the same, one lane
--        lanes    hash     lane -> its holder: the next one of the lane comes forward
--        done     zset     cancelled ids, if they are kept
--        job      string   the job's data
--        load     string   the payload, if it is large
--        seen     zset     the id, if a caller chose it
-- args   id       text
--        by_record int     1 = called for the record of the job; otherwise a job with a record is refused
--        owner    text     refused if the job has another owner; nil = any owner
-- reply  cancelled
--        CANCEL_REQUESTED <worker>
--        JOB_NOT_FOUND
--        JOB_NOT_OWNED
--        JOB_DONE
--        JOB_DEAD
--        JOB_HAS_RECORD <record>
-- moves  ready -> cancelled, delayed -> cancelled, waiting -> cancelled
-- cost   O(log n)
-- full   works
-- uses   keys clock calls meta record notify jobs moves lanes ends send sets plan close answer_each
-- runs   answer_each(cancel, first)

local function cancel(id, by_record, owner)
  local job = read_job(id)
  if not job.state or job.state == 'gone' then return { 'JOB_NOT_FOUND' } end
  if owner and owner ~= job.owner then return { 'JOB_NOT_OWNED' } end
  if job.record and by_record ~= 1 then return { 'JOB_HAS_RECORD', job.record } end
  if job.state == 'done' then return { 'JOB_DONE' } end
  if job.state == 'dead' then return { 'JOB_DEAD' } end
  if job.state == 'leased' then
    set(job, 'cancel', 1)
    change(job)
    note('cancel_requested', id)
    return { 'CANCEL_REQUESTED', job.worker }
  end
  if job.state ~= 'cancelled' then cancel_now(job) end
  return 'cancelled'
end
