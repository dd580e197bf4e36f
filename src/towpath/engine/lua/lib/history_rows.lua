-- history_rows: the history of a queue, which has its numbers whenever the first call of a minute changes it.
-- Minutes are kept for a day, the first of each hour for a month. A row has 41 bytes; the rows of an
-- hour or a day are one field of a hash. If the history can't be read or written, work goes on without it.
--
-- uses   more_keys oldest numbers

local HISTORY_FORMAT, HISTORY_BYTES = '<BI4I4I4I4I4I4I4I4I4I4', 41
local MINUTES_KEPT_H, HOURS_KEPT_D = 24, 30
local history_writes = {}  -- the commands that write new rows

local function numbers_now()
  local stored, numbers = stored_numbers(), {}
  for i, name in ipairs({ 'submitted', 'completed', 'failed', 'died' }) do numbers[i] = stored[name] % 2^32 end
  for _, key in ipairs({ QUEUE, RETRY, WAITING, LEASES, DEAD }) do
    numbers[#numbers + 1] = redis.call('ZCARD', key)
  end
  local oldest = oldest_ready()  -- its age in seconds, plus one; 0 = nothing is ready
  numbers[#numbers + 1] = oldest and 1 + math.max(0, math.floor((now - oldest) / 1000)) or 0
  return numbers
end

local function plan_history()
  local numbers, hour, day = numbers_now(), math.floor(now / 3600000), math.floor(now / 86400000)
  local function add(field, at, most)
    local rows = redis.call('HGET', HISTORY, field) or ''
    if #rows < most * HISTORY_BYTES then
      rows = rows .. struct.pack(HISTORY_FORMAT, at, unpack(numbers))
      history_writes[#history_writes + 1] = { 'HSET', HISTORY, field, rows }
    end
    return #rows > HISTORY_BYTES
  end
  if add('m' .. int(hour), math.floor(now / MINUTE_MS) % 60, 60) then return end
  add('h' .. int(day), hour % 24, 24)
  for _, field in ipairs(redis.call('HKEYS', HISTORY)) do
    local kind, at = string.match(field, '^(%l)(%d+)$')
    local last, kept = hour, MINUTES_KEPT_H
    if kind == 'h' then last, kept = day, HOURS_KEPT_D end
    local ago = last - (tonumber(at) or 0)
    if ago < 0 or ago > kept then history_writes[#history_writes + 1] = { 'HDEL', HISTORY, field } end
  end
end

local function read_history()
  local since = now - meta.minute
  if (since >= 0 and since < MINUTE_MS) then return end
  set_meta('minute', now - now % MINUTE_MS)
  if redis.call('HGET', META, 'no_history') then return end
  if not pcall(plan_history) then history_writes = {} end
end

local function write_history()
  if not history_writes[1] then return end
  for _, command in ipairs(history_writes) do redis.pcall(unpack(command)) end
  redis.pcall('PEXPIRE', HISTORY, (HOURS_KEPT_D + 1) * 86400000)
end
