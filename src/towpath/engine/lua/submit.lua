-- submit: take a job in, once per id.
--
-- keys   queue    zset     ready ids, if it can run now
--        retry    zset     delayed ids by due time, if it can't yet
--        waiting  zset     ids behind the head of their lane
--        lane     zset     the same, one lane
--        lanes    hash     lane -> its holder
--        job      string   the record
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
-- uses   keys clock calls meta record jobs moves lanes plan close tell each
-- runs   each(submit, named)

local COPIED = { 'priority', 'lane', 'max_attempts', 'lease', 'keep', 'retry', 'named' }
local SAME = { [true] = 'same', [false] = 'differs' }
local length

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
    local kept = job.load or redis.call('GET', LOAD .. id)
    return { 'existed', job.state, kept and SAME[kept == load] or 'unknown' }
  end
  local forget_at = redis.call('ZSCORE', SEEN, id)
  if forget_at and tonumber(forget_at) > now then
    return { 'existed', 'gone', 'unknown' }
  end
end

-- A record to write on. Of an earlier life under this id only the place it had counts.
local function blank(id)
  local before = jobs[id]
  local job = new_job(id)
  job.stored = before and before.stored
  job.anew = job.stored
  job.tick = next_tick()
  return job
end

-- Ids that we made ourselves need no look-up.
local function named(item) return item[3] and item[3].named and item[1] or nil end

local function take_options(job, more)
  for _, field in ipairs(COPIED) do
    if more[field] then set(job, field, more[field]) end
  end
  local due = more.due or (more.delay and now + more.delay) or 0
  if due > now then set(job, 'due', due) end
end

local function submit(id, load, more)
  if jobs[id] or (more and more.named) then
    local known = existing(id, load)
    if known then return known end
  end
  if full_up() then return { 'QUEUE_FULL', options.length } end
  local job = blank(id)
  job.load = load
  if more then take_options(job, more) end
  if take_lane(job) then
    if job.due then enter_delayed(job, job.due) else enter_ready(job) end
  end
  if length then length = length + 1 end
  count('submitted')
  note('submit', id)
  return job.state
end
