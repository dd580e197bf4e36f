-- jobs: the records this call touches. Each is read once, changed in memory, and written by
-- close(): a script that fails before that has changed nothing.

local jobs, touched = {}, {}
local removals = {}           -- zset key -> entries to take out that no record accounts for
local notes, noted = {}, {}   -- event -> ids, and the events in the order they came
local wanted = false          -- whether a waiting worker should look
local WAIT_CAP_MS = 5000      -- nobody waits longer without looking

local ZSET = {
  ready = QUEUE, delayed = RETRY, waiting = WAITING, leased = LEASES,
  dead = DEAD, done = DONE, cancelled = DONE,
}

-- A record that begins in this call. The fields of a plain job are named at once: a table
-- that grows is allocated anew several times, which was a third of a claim's cost.
local function new_job(id)
  local job = {
    id = id, key = JOB(id), put = {}, stored = false, score = false, state = false, ttl = false,
    at = false, tick = false, token = false, attempts = false, worker = false, load = false,
  }
  jobs[id] = job
  touched[#touched + 1] = job
  return job
end

-- The record of *id*. Without a state it does not exist, or no longer: what is kept after its
-- end counts as gone once its time is over, whoever comes to trim it.
local function read_job(id)
  if jobs[id] then return jobs[id] end
  local job = new_job(id)
  local flat = redis.call('HGETALL', job.key)
  for i = 1, #flat, 2 do job[flat[i]] = flat[i + 1] end
  job.stored = job.state
  if job.gone_at and tonumber(job.gone_at) <= now then job.state = false end
  return job
end

local function set(job, field, value)
  job[field] = value
  local put = job.put
  put[#put + 1] = field
  put[#put + 1] = value
end

-- Fields are deleted before others are written.
local function clear(job, field)
  if not job[field] then return end
  job[field] = nil
  job.drop = job.drop or {}
  table.insert(job.drop, field)
end

local function note(event, id)
  local ids = notes[event]
  if not ids then
    ids = {}
    notes[event] = ids
    noted[#noted + 1] = event
  end
  ids[#ids + 1] = id
end

-- Put the job into the set of *state* at *score*.
local function enter(job, state, score)
  set(job, 'state', state)
  job.score = score
end

-- At its own place: a job that comes back keeps the score it had.
local function enter_ready(job)
  wanted = true
  enter(job, 'ready', (100 - (job.priority or 50)) * 1e13 + (job.turn or job.tick))
end

local function enter_delayed(job, due)
  if due - now < WAIT_CAP_MS then wanted = true end
  set(job, 'due', due)
  enter(job, 'delayed', due)
end

-- Behind those that are ready now; delayed if its time has not come.
local function enter_behind(job)
  local due = tonumber(job.due or 0)
  if due > now then return enter_delayed(job, due) end
  set(job, 'turn', next_tick())
  enter_ready(job)
end

local function remove_entry(key, id)
  removals[key] = removals[key] or {}
  table.insert(removals[key], id)
end

-- An entry without a record becomes a dead job, so that it is seen and the queue goes on.
local function set_aside(key, id)
  remove_entry(key, id)
  local job = read_job(id)
  if job.stored then return end  -- its record says where it is: only the entry was wrong
  set(job, 'at', now)
  set(job, 'tick', next_tick())
  set(job, 'ended', now)
  set(job, 'reason', 'NO_RECORD: an entry of ' .. key .. ' has no job behind it')
  enter(job, 'dead', now)
  count('died')
  note('dead', id)
end
