-- move: another due time for a job that waits.
--
-- keys   queue    zset     ready ids: it leaves them, or comes behind those that are ready now
--        retry    zset     delayed ids by due time
--        waiting  zset     if its time has come and its lane went on without it
--        lane     zset     the same, at its submission tick
--        lanes    hash     lane -> its holder
--        job      string   the job's data
-- args   id       text
--        due      ms       the instant; -1 = use the delay
--        delay    ms       from now
--        owner    text     refused if the job has another owner; nil = any owner
-- reply  ready
--        delayed
--        waiting
--        JOB_NOT_FOUND
--        JOB_NOT_OWNED
--        JOB_NOT_WAITING <state>
--        JOB_HAS_RECORD <record>
-- moves  ready -> delayed, delayed -> ready, delayed -> waiting
-- cost   O(log n)
-- full   works
-- uses   keys clock calls meta record notify jobs moves lanes send sets plan close answer_each waits
-- runs   answer_each(move, first)

local function move(id, due, delay, owner)
  local job = read_job(id)
  if not job.state or job.state == 'gone' then return { 'JOB_NOT_FOUND' } end
  if owner and owner ~= job.owner then return { 'JOB_NOT_OWNED' } end
  if job.record then return { 'JOB_HAS_RECORD', job.record } end
  if not WAITS[job.state] then return { 'JOB_NOT_WAITING', job.state } end
  due = math.max(now, due < 0 and now + delay or due)
  if job.state == 'ready' and due == now then return 'ready' end  -- it is ready already, and keeps its place
  count('moved')
  note('move', id)
  set(job, 'due', due)
  job.asked_due, job.keep_turn = nil, nil  -- the new due time replaces them
  if job.state == 'waiting' then
    change(job)  -- the due time counts once it is the head of its lane
  elseif due > now then
    enter_delayed(job, due)
  elseif take_lane(job) then
    enter_behind(job)
  end
  return job.state
end
