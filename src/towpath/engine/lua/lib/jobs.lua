-- jobs: the jobs that this call touches. Each is read once, changed in memory, and written by
-- close(): a script that fails before that has changed nothing.

local jobs, changed = {}, {}  -- by id; those to be written
local strays = {}             -- zset key -> entries to remove, because the job's data says otherwise

local ZSET = {
  ready = QUEUE, delayed = RETRY, waiting = WAITING, leased = LEASES,
  dead = DEAD, done = DONE, cancelled = DONE,
}

-- Note that a job is to be written. Its field *stored* is its state in Redis, false = not there.
local function change(job)
  if not job.changed then
    job.changed = true
    changed[#changed + 1] = job
  end
end

local function new_job(id)
  jobs[id] = blank(id)
  return jobs[id]
end

-- A job that does not exist has no state. One that is kept after its end counts as gone once its
-- time is over, even if it was not trimmed yet.
local function keep_read(id, text)
  local job = text and decode(id, text) or new_job(id)
  if job.gone_at and job.gone_at <= now then job.state = false end
  jobs[id] = job
  return job
end

-- Read the data of all *ids* in one step.
local function read_jobs(ids)
  local names = {}
  for i = 1, #ids do names[i] = JOB .. ids[i] end
  if #names == 0 then return end
  local texts = redis.call('MGET', unpack(names))
  for i = 1, #ids do
    if not jobs[ids[i]] then keep_read(ids[i], texts[i]) end
  end
end

local function read_job(id)
  return jobs[id] or keep_read(id, redis.call('GET', JOB .. id))
end

-- Set a field of the map, with which the job is no longer plain.
local function set(job, field, value)
  job[field] = value
  job.more = job.more or {}
end

local function take_out(key, id)
  strays[key] = strays[key] or {}
  table.insert(strays[key], id)
end
