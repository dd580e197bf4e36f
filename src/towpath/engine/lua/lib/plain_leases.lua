-- plain_leases: the short way of a claim: nothing has fallen due, and the next jobs are plain.
--
-- uses   answer

local TRIM_EVERY_MS = 1000
local taken, puts, expiries = {}, {}, {}     -- ids; key, record, ...; expiry, id, ...
local leases, due, left = {}, 0, 0           -- the answer
local memory = { 0, 0 }                      -- due, left, id, token, ...
local wake, lasting = false, 0

local function first_score(key)
  return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]) or math.huge
end

-- Records, then payloads, of those that are taken, from one to another.
local function read_plain(from, to)
  local names, n = {}, to - from + 1
  for i = 1, n do
    local id = taken[from + i - 1]
    names[i], names[n + i] = JOB .. id, LOAD .. id
  end
  return names, n, redis.call('MGET', unpack(names))
end

-- Plan the leases of the first of *taken*, as many as one answer carries. Nothing if there is more
-- to it.
local function plan_leases(worker, lease)
  local token, size = math.max(now_us, meta.token + 1) - 1, 0
  if not is_time(token + #taken) then return end
  for from, to in portions(#taken) do
    local names, n, texts = read_plain(from, to)
    for i = from, to do
      local k = i - from + 1
      local id, text, payload = taken[i], texts[k], texts[n + k]
      if not text or not payload then return end
      local fine, code, submitted_at, tick, _, attempts, _, rest = pcall(struct.unpack, HEAD, text)
      if not fine or code ~= READY or rest <= #text then return end
      size = size + #payload
      if size > ANSWER_BYTES and i > 1 then return i - 1 end
      token = token + 1
      puts[2 * i - 1] = names[k]
      puts[2 * i] = struct.pack(HEAD, LEASED, submitted_at, tick, token, attempts + 1, worker)
      expiries[2 * i - 1], expiries[2 * i] = now + lease, id
      memory[2 * i + 1], memory[2 * i + 2] = id, token
      leases[i] = { id, payload, token, attempts + 1, now + lease, submitted_at }
    end
  end
  return #taken
end

-- Plan the claim. False if there is more to it.
local function lease_plain(worker, lease, count, lane, _, _, _, selectors)
  if selectors or lane ~= '' or meta.paused > 0 or now - meta.trimmed_at >= TRIM_EVERY_MS then return false end
  due = math.min(first_score(LEASES), first_score(RETRY))
  if due <= now then return false end
  taken, lasting = redis.call('ZRANGE', QUEUE, 0, count - 1), lease
  local n = plan_leases(worker, lease)
  if not n then return false end
  if due == math.huge then due = 0 end
  if n < #taken then due = now end  -- there is more, at once
  for i = #taken, n + 1, -1 do taken[i] = nil end
  left = redis.call('ZCARD', QUEUE) - n
  memory[1], memory[2] = due, left
  local soon = n > 0 and due > 0 and due - now < WAIT_CAP_MS
  wake = (left > 0 or soon) and redis.pcall('LLEN', WAKE) == 0
  return true
end
