-- moves: how a job enters a state: which set it is in then, and at what score.
--
-- uses   send sets grouping

local function enter(job, state, score)
  job.state, job.score = state, score
  change(job)
end

-- Enter at its own place: a job that comes back keeps the score it had.
local function enter_ready(job)
  want(job)
  enter(job, 'ready', (100 - (job.priority or 50)) * 1e13 + (job.turn or job.tick))
end

local function enter_delayed(job, due)
  if due - now < WAIT_CAP_MS then want(job) end
  set(job, 'due', due)
  enter(job, 'delayed', due)
end

-- Delay a job until another try. The due time that was asked for is kept, too; 0 = none was.
local function enter_again(job, due)
  set(job, 'asked_due', job.asked_due or job.due or 0)
  enter_delayed(job, due)
end

-- Enter behind the jobs that are ready now; delayed if its time has not come.
local function enter_behind(job)
  local due = job.due or 0
  if due > now then return enter_delayed(job, due) end
  set(job, 'turn', next_tick())
  enter_ready(job)
end

local FAILURES, FAILURE_BYTES, TRACEBACKS = 5, 200, 3

-- Tracebacks are large, so fewer are kept. Each has the time of the failure that it belongs to.
local function note_traceback(job, traceback)
  local kept = job.tracebacks or {}
  kept[#kept + 1] = { now, traceback }
  if #kept > TRACEBACKS then table.remove(kept, 1) end
  set(job, 'tracebacks', kept)
end

local function forget_unhandled(job)
  job.unhandled, job.unhandled_since = nil, nil
end

-- Add to the list of the last failed attempts: time, worker, reason.
local function note_failure(job, reason, traceback)
  forget_unhandled(job)  -- a worker tried it
  if job.tracebacks or (traceback and traceback ~= '') then note_traceback(job, traceback or '') end
  local kept = job.failures or {}
  kept[#kept + 1] = { now, job.worker, string.sub(reason, 1, FAILURE_BYTES) }
  if #kept > FAILURES then table.remove(kept, 1) end
  set(job, 'failures', kept)
end

local function enter_dead(job, reason)
  set(job, 'ended', now)
  set(job, 'reason', reason)
  leave_group(job)  -- an earlier release left the job in its group when it retried it
  set(job, 'group', group_of(reason))
  enter(job, 'dead', now)
  count('died')
  note('dead', job.id)
end

-- Returns the id of the dead job that stands for a stray entry: the entry, or its bytes in hex if
-- no job can have it as its id.
local function showable(id)
  if string.find(id, '^[\32-\126]+$') and #id <= 512 then return id end
  local hex = string.gsub(string.sub(id, 1, 100), '.', function(c)
    return string.format('%02x', string.byte(c))
  end)
  return 'stray-' .. hex
end

-- An entry without a job's data becomes a dead job, so that it is seen and the queue goes on.
local function set_aside(key, id)
  take_out(key, id)
  if read_job(id).stored then return end  -- the job exists elsewhere: only the entry was wrong
  local job = read_job(showable(id))
  if job.stored then return end
  job.tick = next_tick()
  enter_dead(job, 'NO_RECORD: an entry of ' .. key .. ' has no job behind it')
end
