-- set: create a job under an id, or replace the waiting job with that id.
--
-- keys   queue    zset     ready ids, if it can run now
--        retry    zset     delayed ids by due time, if it can't yet
--        waiting  zset     ids behind the head of their lane
--        lane     zset     the same, one lane; the lane of the old job goes on without it
--        lanes    hash     lane -> its holder
--        done     zset     done ids: the old job leaves them, if it had ended
--        dead     zset     the same
--        job      string   the job's data
--        load     string   the payload, if it is large
--        result   string   deleted, if there was one
-- args   id       text
--        payload  bytes
--        more     map      what is not plain, as in submit
--        owner    text     refused if the job that is there has another owner; nil = any owner
-- reply  new <state>
--        replaced <state>
--        JOB_NOT_OWNED
--        JOB_NOT_WAITING <state>
--        JOB_HAS_RECORD <record>
--        QUEUE_FULL <length>
--        PAYLOAD_TOO_LARGE <size> <limit>
-- moves  new -> ready, new -> delayed, new -> waiting
--        ready -> gone, delayed -> gone, waiting -> gone, done -> gone, cancelled -> gone, dead -> gone
-- cost   O(log n)
-- full   refused
-- uses   keys clock calls meta record notify jobs moves lanes send sets plan close answer_each waits
-- runs   answer_each(set_job, first)

local room

-- Remove all of the old job: the new one has neither its lane nor its result.
local function take_away(job)
  if job.stored then zrem(ZSET[job.stored], job.id) end
  if job.stored == 'waiting' then zrem(LANE .. job.lane, job.id) end
  if job.stored == 'ready' and job.selector then zrem(SELECTOR .. job.selector, job.id) end
  leave_group(job)
  if job.gone_at then unlinks[#unlinks + 1] = RESULT .. job.id end
  job.state = 'gone'
  leave_lane(job)
  for i = job.changed and #changed or 0, 1, -1 do
    if changed[i] == job then table.remove(changed, i) end  -- this call has changed the old job before
  end
end

local function place(job, payload)
  if #payload > SMALL then job.large = payload else job.payload = payload end
  if take_lane(job) then
    if job.due then enter_delayed(job, job.due) else enter_ready(job) end
  end
  note('set', job.id)
end

local function set_job(id, payload, more, owner)
  local old = read_job(id)
  local replaces = WAITS[old.state]
  room = room or room_left()
  if #payload > options.max_payload then return { 'PAYLOAD_TOO_LARGE', #payload, options.max_payload } end
  local taken = old.state and old.state ~= 'gone'
  if taken and owner and owner ~= old.owner then return { 'JOB_NOT_OWNED' } end
  if old.record then return { 'JOB_HAS_RECORD', old.record } end
  if old.state == 'leased' then return { 'JOB_NOT_WAITING', old.state } end
  if not replaces and room <= 0 then return { 'QUEUE_FULL', options.max_length } end
  if old.stored or old.changed then take_away(old) end

  local job = new_job(id)
  job.tick, job.more = next_tick(), more or {}
  local due = job.more.due or (job.more.delay and now + job.more.delay) or 0
  job.more.delay, job.more.due = nil, due > now and due or nil
  for field, value in pairs(job.more) do job[field] = value end
  job.replaces_large = old.replaces_large or (old.stored and not old.payload)
  place(job, payload)
  if replaces then count('replaced') else count('submitted') end
  if not replaces then room = room - 1 end
  return { replaces and 'replaced' or 'new', job.state }
end
