-- record: how a job is written down. A head of fixed fields, and for what is not plain a map
-- behind it: a plain job is read and written at the cost of its head. (A hash was tried: each
-- field is a call's argument and a search in the list, 30 % of a job's whole cost.)
--
-- uses   head

local STATES = { 'ready', 'delayed', 'waiting', 'leased', 'done', 'cancelled', 'dead' }
local CODES = {
  ready = 1, delayed = 2, waiting = 3, leased = 4, done = 5, cancelled = 6, dead = 7,
}
-- What scripts change of that map. All else stays as it was said, also what only a newer release
-- knows.
local CHANGED = {
  'turn', 'due', 'cancel', 'reason', 'progress', 'ended', 'gone_at', 'claimed', 'counted', 'failures',
  'tracebacks', 'group', 'asked_due', 'keep_turn', 'deaths', 'excused', 'unhandled', 'unhandled_since',
}

-- What stands for a record that is not there, or that nobody can read: it has no state.
local function blank(id)
  return {
    id = id, stored = false, state = false, submitted_at = now, tick = false, token = 0,
    attempts = 0, worker = '', score = false, changed = false, more = false,
  }
end

local function decoded(id, text)
  local code, submitted_at, tick, token, attempts, worker, last = struct.unpack(HEAD, text)
  local job = {
    id = id, stored = STATES[code], state = STATES[code], submitted_at = submitted_at,
    tick = tick, token = token, attempts = attempts, worker = worker,
    score = false, changed = false, more = false,
  }
  if last <= #text then
    local more = cmsgpack.unpack(string.sub(text, last))
    for field, value in pairs(more) do job[field] = value end
    job.more = more
  end
  return job
end

-- A record that somebody has spoilt must not stop the jobs beside it.
local function decode(id, text)
  local fine, job = pcall(decoded, id, text)
  return fine and job.stored and job or blank(id)
end

local function encode(job)
  local head = struct.pack(
    HEAD, CODES[job.state], job.submitted_at, job.tick, job.token, job.attempts, job.worker)
  if not job.more then return head end
  local more = job.more
  for _, field in ipairs(CHANGED) do
    if job[field] ~= more[field] then more[field] = job[field] end
  end
  return next(more) and head .. cmsgpack.pack(more) or head
end
