-- plain_leases: the short way of a claim: nothing has fallen due, and the next jobs are plain.

local TRIM_EVERY_MS = 1000
local taken, puts, expiries = {}, {}, {}     -- ids; key, record, ...; expiry, id, ...
local leases, due, left = {}, 0, 0           -- the answer
local memory = { 0, 0 }                      -- due, left, id, token, ...
local wake, lasting = false, 0

local function first_score(key)
  return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]) or math.huge
end

-- Records, then payloads, of all *ids*.
local function read_plain(ids)
  local names, n = {}, #ids
  for i = 1, n do names[i], names[n + i] = JOB .. ids[i], LOAD .. ids[i] end
  return names, n > 0 and redis.call('MGET', unpack(names))
end

-- Plan the leases. False if there is more to it.
local function lease_plain(worker, lease, most, lane)
  if lane ~= '' or meta.paused > 0 or now - meta.trimmed_at >= TRIM_EVERY_MS then return false end
  due = math.min(first_score(LEASES), first_score(RETRY))
  if due <= now then return false end
  taken, lasting = redis.call('ZRANGE', QUEUE, 0, most - 1), lease
  local n, names, texts = #taken, read_plain(taken)
  local token = math.max(now_us, meta.token + 1) - 1
  if not is_time(token + n) then return false end
  for i = 1, n do
    local id, text, load = taken[i], texts[i], texts[n + i]
    if not text or not load then return false end
    local fine, code, at, tick, _, attempts, _, rest = pcall(struct.unpack, HEAD, text)
    if not fine or code ~= READY or rest <= #text then return false end
    token = token + 1
    puts[2 * i - 1] = names[i]
    puts[2 * i] = struct.pack(HEAD, LEASED, at, tick, token, attempts + 1, worker)
    expiries[2 * i - 1], expiries[2 * i] = now + lease, id
    memory[2 * i + 1], memory[2 * i + 2] = id, token
    leases[i] = { id, load, token, attempts + 1, now + lease, at }
  end
  if due == math.huge then due = 0 end
  left = redis.call('ZCARD', QUEUE) - n
  memory[1], memory[2] = due, left
  local soon = n > 0 and due > 0 and due - now < WAIT_CAP_MS
  wake = (left > 0 or soon) and redis.pcall('LLEN', WAKE) == 0
  return true
end

-- The sets were read above. The first write can't grow: with memory full, work goes on.
local function write_leases(worker)
  local f, n = #fields, #taken
  fields[f + 1], fields[f + 2] = 'asked_at', now
  if n == 0 then return redis.call('UNLINK', LOCK) end  -- no job has an empty id
  fields[f + 3], fields[f + 4] = 'token', memory[2 * n + 2]
  redis.call('ZREMRANGEBYRANK', QUEUE, 0, n - 1)  -- those that were read: half the cost of ZREM
  redis.call('MSET', unpack(puts))
  redis.call('ZADD', LEASES, unpack(expiries))
  for i = 1, n do
    redis.call('SET', LOCK .. taken[i], worker .. ' ' .. int(memory[2 * i + 2]), 'PX', lasting)
  end
  told[#told + 1] = 'claim'
  told[#told + 1] = table.concat(taken, '\n')
end
