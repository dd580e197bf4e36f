-- accept: where a new job goes, and all that is written for it. A submit moves no other job, so it
-- does without the machinery that the other verbs share, and plain jobs cost less.
--
-- uses   more_keys

local puts = {}     -- key, value, ...
local holders = {}  -- lane -> its holder, as far as this call knows
local taken = {}    -- lane, holder, ...: lanes that this call took

local function holder_of(lane)
  if holders[lane] == nil then holders[lane] = redis.call('HGET', LANES, lane) end
  return holders[lane]
end

-- Whether the job has to wait behind the head of its lane; if not, it is the head.
local function waits(lane, id)
  if holder_of(lane) then return true end
  holders[lane] = id
  taken[#taken + 1] = lane
  taken[#taken + 1] = id
  return false
end

-- When a new job may run; 0 = now. A job with a record has both a due time and a delay. The due time
-- is by the database's clock. If Redis's clock is behind, the delay is over first and counts. If it is
-- ahead, the job is claimed too early, and its row sends it back. An overdue job is placed by its due
-- time, too.
local function take_due(more)
  local due, delay = more.due, more.delay
  more.delay = nil
  if due and delay then
    if now + delay < due then
      more.asked_due, due = more.asked_due or due, now + delay
    end
    more.due = due
    return due
  end
  due = due or (delay and now + delay) or 0
  more.due = due > now and due or nil
  return due
end

-- Place a job that is not plain. Returns its state, and its packed map: the options of the submit,
-- where a delay has become a due time.
local function place_special(id, tick, more)
  local due = take_due(more)
  local state = 'ready'
  if more.lane and waits(more.lane, id) then
    state = 'waiting'
    zadd(WAITING, tick, id)
    zadd(LANE .. more.lane, tick, id)
  elseif more.due then
    state = 'delayed'
    zadd(RETRY, due, id)
    if due - now < WAIT_CAP_MS then want(more) end
  else
    local score = (100 - (more.priority or 50)) * 1e13 + tick
    zadd(QUEUE, score, id)
    if more.selector then zadd(SELECTOR .. more.selector, score, id) end
    want(more)
  end
  return state, next(more) and cmsgpack.pack(more) or ''  -- an empty table would be packed as a list
end

local function accept(id, payload, more)
  local tick, state, rest = next_tick(), 'ready', ''
  local ahead = tick - now
  if ahead > AHEAD_MOST then
    more, ahead = more or {}, AHEAD_MOST
    more.submitted_at = now
  end
  if more then
    state, rest = place_special(id, tick, more)
  else
    zadd(QUEUE, 5e14 + tick, id)
    wanted = true
  end
  local n, code = #puts, CODES[state]
  if #payload > SMALL then
    puts[n + 3], puts[n + 4] = LOAD .. id, payload
    code, payload = code + APART, ''
  end
  if rest ~= '' then
    code, rest = code + NOT_PLAIN, struct.pack('<I4', #rest) .. rest
  end
  puts[n + 1], puts[n + 2] = JOB .. id, struct.pack(START, code, tick, ahead) .. rest .. payload
  return state
end
