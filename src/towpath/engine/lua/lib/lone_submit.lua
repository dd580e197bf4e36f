-- lone_submit: the shortest way, for one plain job whose id and payload are separate arguments. For any other
-- call this changes nothing, and `plain_submit` starts again. A function, a table and a key's name cost as much
-- as a small command, so here is only what this job needs.
--
-- uses   head

-- From the loader: READ_LOCALS, which makes a variable of each option and of each of the queue's numbers here.
local lone_id, lone_payload = ARGV[6], ARGV[7]
if lone_id then
  local call, tag = redis.call, string.sub(KEYS[1], 1, -6)
  local values = call('HMGET', KEYS[1], 'options', 'version', 'in', 'state')
  local packed = values[1]
  if packed and values[2] == ARGV[5] and string.sub(packed, 1, 8) == OPTIONS_FORM then
    READ_LOCALS
    local now = ARGV[1]
    if now == '' then
      local time = call('TIME')
      now = time[1] * 1000 + math.floor(time[2] / 1000)
    else
      now = tonumber(now)
    end
    tick = tick + 1
    if tick < now then tick = now end
    local writes_event = events == 'all' or (watched > now and events ~= 'none')  -- as in `publish`
    if max_length == 0 and #lone_payload <= max_payload and now - minute < 60000
      and (writes_event or watched == 0) and tick - now < AHEAD_MOST then
      local large = #lone_payload > SMALL
      local text = large and struct.pack(START, READY + APART, tick, tick - now)
        or struct.pack(START, READY, tick, tick - now) .. lone_payload
      local wake = redis.pcall('LLEN', tag .. ':wake') == 0

      -- One command reads and writes the memory of calls. If this is not the next call of its channel, or the job
      -- exists, the memory is restored, and the other ways decide.
      local CALL, JOB = tag .. ':call:' .. ARGV[2], tag .. ':job:' .. lone_id
      local last = redis.pcall('SET', CALL, ARGV[3] .. ' submit', 'PX', 600000, 'GET')
      local fits = not last or (type(last) == 'string'
        and (tonumber(string.sub(last, 1, (string.find(last, ' ', 1, true) or 1) - 1)) or math.huge) < tonumber(ARGV[3]))
      local placed = fits and call('SET', JOB, text, 'NX') and redis.pcall('ZADD', tag .. ':queue', 5e14 + tick, lone_id)
      if type(placed) == 'number' then
        if large then call('SET', tag .. ':load:' .. lone_id, lone_payload) end
        call('HSET', KEYS[1], 'in', struct.pack('<i6i6', tick, submitted + 1))
        if writes_event then redis.pcall('XADD', tag .. ':events', 'MAXLEN', '~', events_most, '*', 'submit', lone_id) end
        if wake then redis.pcall('RPUSH', tag .. ':wake', '1') end
        return { 'ready' }
      end
      if placed then call('UNLINK', JOB) end
      if not last then call('UNLINK', CALL) end
      if type(last) == 'string' then call('SET', CALL, last, 'PX', 600000) end
      if placed then return placed end
    end
  end
end
