-- submit: take a job in, once per id.
--
-- keys   queue    zset     ready ids, if it can run now
--        retry    zset     delayed ids by due time, if it can't yet
--        waiting  zset     ids behind the head of their lane
--        lane     zset     the same, one lane
--        lanes    hash     lane -> its holder
--        job      hash     the record
--        load     string   the payload
--        seen     zset     ids that callers chose and that are gone
-- args   id       text
--        load     bytes
--        more     map      what is not plain: named, priority, delay, due, lane, max_attempts, lease, keep, retry
-- reply  ready
--        delayed
--        waiting
--        existed <state> <same | differs | unknown>
--        QUEUE_FULL <length>
-- moves  new -> ready, new -> delayed, new -> waiting
-- cost   O(log n)
-- full   refused
-- uses   keys clock calls meta jobs lanes plan close each
-- runs   each(submit)

local PLAIN = {}
local COPIED = { 'priority', 'lane', 'max_attempts', 'lease', 'keep', 'retry', 'named' }
local length
local EXISTED = { [true] = 'same', [false] = 'differs' }

local function full_up()
  if options.length == 0 then return false end
  length = length
    or redis.call('ZCARD', QUEUE) + redis.call('ZCARD', RETRY) + redis.call('ZCARD', WAITING)
  return length >= options.length
end

-- The answer for an id that is known, or was within the window that ids are remembered for.
local function existing(id, load)
  local job = read_job(id)
  if job.state then
    local kept = job.load or redis.call('GET', LOAD(id))
    return { 'existed', job.state, kept and EXISTED[kept == load] or 'unknown' }
  end
  local forget_at = redis.call('ZSCORE', SEEN, id)
  if forget_at and tonumber(forget_at) > now then
    return { 'existed', 'gone', 'unknown' }
  end
end

-- A record to write on. What an earlier life under this id left behind is removed first.
local function blank(id)
  local before = jobs[id]
  local job = new_job(id)
  if before then
    before.id = nil  -- no longer a job of this call
    job.stored, job.anew = before.stored, before.stored
  end
  return job
end

local function submit(id, load, more)
  more = more or PLAIN
  local known = (more.named or jobs[id]) and existing(id, load)
  if known then return known end
  if full_up() then return { 'QUEUE_FULL', options.length } end

  local job = blank(id)
  job.load = load
  set(job, 'at', now)
  set(job, 'tick', next_tick())
  for _, field in ipairs(more == PLAIN and PLAIN or COPIED) do
    if more[field] then set(job, field, more[field]) end
  end
  local due = more.due or (more.delay and now + more.delay) or 0
  if due > now then set(job, 'due', due) end
  if take_lane(job) then
    if due > now then enter_delayed(job, due) else enter_ready(job) end
  end
  if length then length = length + 1 end
  count('submitted')
  note('submit', id)
  return job.state
end
