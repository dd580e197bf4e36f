-- promote: make the jobs ready whose time has come.
--
-- keys   retry    zset     delayed ids by due time, ms
--        queue    zset     ready ids: behind those ready now, in order of due time, then submission
--        waiting  zset     those whose lane went on without them
--        lane     zset     the same, one lane
--        lanes    hash     lane -> its holder
--        job      string   the job's data
-- args   limit    int      at most so many
-- reply  <how many>
-- moves  delayed -> ready, delayed -> waiting
-- cost   O(limit · log n)
-- full   works
-- uses   keys clock calls meta record notify jobs moves lanes ends send sets plan close answer_each
-- runs   answer_each(promote)

-- The due time that the caller asked for, also if the job waited for another try since. If there
-- was none, the time of that try.
local function due_of(job)
  return job.asked_due and job.asked_due > 0 and job.asked_due or job.due
end

local function by_due_then_tick(a, b)
  local first, second = due_of(a), due_of(b)
  if first ~= second then return first < second end
  return a.tick < b.tick
end

local function due_jobs(limit)
  local due = {}
  local ids = redis.call('ZRANGEBYSCORE', RETRY, '-inf', now, 'LIMIT', 0, limit)
  read_jobs(ids)
  for _, id in ipairs(ids) do
    if jobs[id].state == 'delayed' then due[#due + 1] = jobs[id] else set_aside(RETRY, id) end
  end
  for i = 1, #ids < limit and #changed or 0 do  -- jobs that this call itself has delayed, and that are due
    if changed[i].state == 'delayed' and changed[i].due <= now then due[#due + 1] = changed[i] end
  end
  return due, #ids
end

-- Behind the ready jobs; or at its old place, if it keeps its turn.
local function enter_when_due(job)
  if not job.keep_turn then return enter_behind(job) end
  job.keep_turn = nil
  enter_ready(job)
end

local function promote(limit)
  local due, found = due_jobs(limit)
  table.sort(due, by_due_then_tick)
  for _, job in ipairs(due) do
    count('promoted')
    note('promote', job.id)
    if take_lane(job) then enter_when_due(job) end
  end
  return found
end
