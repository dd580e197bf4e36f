-- record: how a job's data is stored: a head of fixed fields, a map of what is not plain, and the
-- payload if it is small. (A hash was tried: each field is an argument of a command and a search in
-- the hash, 30 % of a job's whole cost.)
--
-- uses   head

local STATES = { 'ready', 'delayed', 'waiting', 'leased', 'done', 'cancelled', 'dead' }
local CODES = {
  ready = 1, delayed = 2, waiting = 3, leased = 4, done = 5, cancelled = 6, dead = 7,
}
-- The fields of that map that scripts change. All others stay as they were submitted, also those that
-- only a newer release knows.
local CHANGED = {
  'turn', 'due', 'cancel', 'reason', 'progress', 'ended', 'gone_at', 'claimed', 'counted', 'failures',
  'tracebacks', 'group', 'asked_due', 'keep_turn', 'deaths', 'excused', 'unhandled', 'unhandled_since',
}

-- A stand-in for a job that does not exist or can't be read: it has no state. Its payload, if there is one, has a
-- key of its own.
local function blank(id)
  return {
    id = id, stored = false, state = false, submitted_at = now, tick = false, token = 0,
    attempts = 0, worker = '', score = false, changed = false, more = false, payload = false,
  }
end

-- Where the payload begins, and the parts before it.
local function parts_of(text)
  local code, tick, ahead, at = struct.unpack(START, text)
  local token, attempts, worker, packed = 0, 0, '', false
  if bit.band(code, WAS_LEASED) > 0 then
    token, attempts, worker, at = struct.unpack(LAST_LEASE, text, at)
  end
  if bit.band(code, NOT_PLAIN) > 0 then packed, at = struct.unpack('<I4c0', text, at) end
  return at, code, tick - ahead, tick, token, attempts, worker, packed
end

local function decoded(id, text)
  local at, code, submitted_at, tick, token, attempts, worker, packed = parts_of(text)
  local state = code < 2 * APART and STATES[bit.band(code, 7)]
  local job = {
    id = id, stored = state, state = state, submitted_at = submitted_at,
    tick = tick, token = token, attempts = attempts, worker = worker,
    score = false, changed = false, more = false,
  }
  if packed then
    job.more = cmsgpack.unpack(packed)
    for field, value in pairs(job.more) do job[field] = value end
  end
  job.payload = code < APART and string.sub(text, at)
  return job
end

-- The job's data without its payload, for lists. Damaged data is returned as it is.
local function without_payload(text)
  local fine, at = pcall(parts_of, text)
  return fine and string.sub(text, 1, at - 1) or text
end

-- Damaged data of one job must not stop the others.
local function decode(id, text)
  local fine, job = pcall(decoded, id, text)
  return fine and job.stored and job or blank(id)
end

local function packed_more(job)
  local more = job.more
  if job.tick - job.submitted_at > AHEAD_MOST then more.submitted_at = job.submitted_at end
  for _, field in ipairs(CHANGED) do
    if job[field] ~= more[field] then more[field] = job[field] end
  end
  return next(more) and cmsgpack.pack(more)
end

local function encode(job)
  local ahead = job.tick - job.submitted_at
  if ahead > AHEAD_MOST then job.more, ahead = job.more or {}, AHEAD_MOST end
  local code, last, packed = CODES[job.state], '', job.more and packed_more(job)
  if job.token > 0 then
    code, last = code + WAS_LEASED, struct.pack(LAST_LEASE, job.token, job.attempts, job.worker)
  end
  if packed then
    code, packed = code + NOT_PLAIN, struct.pack('<I4', #packed) .. packed
  end
  if not job.payload then code = code + APART end
  local start = struct.pack(START, code, job.tick, ahead)
  return start .. last .. (packed or '') .. (job.payload or '')
end
