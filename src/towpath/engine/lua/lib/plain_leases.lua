-- plain_leases: the short way of a claim: nothing has fallen due, and the next jobs are plain.
--
-- uses   answer

local TRIM_EVERY_MS = 1000
local taken, puts, expiries = {}, {}, {}     -- ids; key, record, ...; expiry, id, ...
local leases, due, left = {}, 0, 0           -- the answer
local memory = { 0, 0 }                      -- due, left, id, token, ...
local wake, lasting = false, 0
local FORMS = {                              -- of plain jobs that wait, by code
  [READY] = START, [READY + APART] = START,
  [READY + WAS_LEASED] = HELD, [READY + WAS_LEASED + APART] = HELD,
}

local function first_score(key)
  return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]) or math.huge
end

-- The data of the taken jobs, and a function that reads their large payloads. Nil if one is not plain.
local function read_plain(names)
  for i = 1, #taken do names[i] = JOB .. taken[i] end
  local texts, large = redis.call('MGET', unpack(names)), {}
  for i = 1, #taken do
    local code = texts[i] and string.byte(texts[i])
    if not FORMS[code or 0] then return end
    if code >= APART then large[#large + 1] = taken[i] end
  end
  return texts, #large > 0 and payload_reader(large)
end

-- Plan the leases of the first of *taken*, as many as fit into one answer. Returns how many; nil if
-- it is not that simple.
local function plan_leases(worker, lease)
  local token, size = math.max(now_us, meta.token + 1) - 1, 0
  if #taken == 0 then return 0 end
  if not is_time(token + #taken) then return end
  local names = { '' }
  local texts, read_large = read_plain(names)
  for i = 1, texts and #taken or 0 do
    local id, text = taken[i], texts[i]
    local form = FORMS[string.byte(text)]
    local fine, code, tick, ahead, at, attempts, _, behind = pcall(struct.unpack, form, text)
    if not fine then return end
    if form == START then attempts, behind = 0, at end
    local small = code < APART and string.sub(text, behind)
    local payload = small or read_large()
    if not payload then return end
    size = size + #payload
    if size > ANSWER_BYTES and i > 1 then return i - 1 end
    token, attempts = token + 1, attempts + 1
    code = small and LEASED or LEASED + APART
    local head = struct.pack(HELD, code, tick, ahead, token, attempts, worker)
    puts[2 * i - 1], puts[2 * i] = names[i], head .. (small or '')
    expiries[2 * i - 1], expiries[2 * i] = now + lease, id
    memory[2 * i + 1], memory[2 * i + 2] = id, token
    leases[i] = { id, payload, token, attempts, now + lease, tick - ahead }
  end
  return texts and #taken
end

-- Plan the claim. False if it is not that simple.
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
