-- close: the only writer. Everything above has only read; what is written here stays, even if
-- a later write fails, so each key is first read with its own type: what can fail, fails there.

-- unpack() takes at most 8,000 values.
local function send(command, list, key)
  for from = 1, #list, 4000 do
    local to = math.min(from + 3999, #list)
    if key then
      redis.call(command, key, unpack(list, from, to))
    else
      redis.call(command, unpack(list, from, to))
    end
  end
end

-- In a slot that is being moved, or where somebody put another type, this fails in time.
local function check_keys()
  for _, key in ipairs(plan_order) do redis.call('ZCARD', key) end
  if #lanes_touched > 0 then redis.call('HLEN', LANES) end
  if #noted > 0 and options.events > 0 then redis.call('XLEN', EVENTS) end
  send('EXISTS', fresh)
  send('EXISTS', unlinks)
end

local function write_sets()
  local freed = false
  for _, key in ipairs(plan_order) do
    send('ZREM', plan[key].rem, key)
    freed = freed or #plan[key].rem > 0
  end
  -- With memory full Redis refuses a script whose first write may grow it. Work that is under
  -- way must go on, so its first write is one that can't.
  if not freed and full == 'works' then redis.call('ZREM', LEASES, '') end
  send('UNLINK', unlinks)
  for _, key in ipairs(plan_order) do send('ZADD', plan[key].add, key) end
  send('MSET', loads)
end

local function write_record(job)
  if job.drop then redis.call('HDEL', job.key, unpack(job.drop)) end
  if #job.put > 0 then redis.call('HSET', job.key, unpack(job.put)) end
  if job.lock then redis.call('SET', job.lock, job.worker .. ' ' .. int(job.token), 'PX', job.ttl) end
  if job.expire then
    redis.call('PEXPIRE', job.key, job.expire)
    redis.call('PEXPIRE', LOAD(job.id), job.expire)
  end
end

local function write_lanes()
  for _, lane in ipairs(lanes_touched) do
    if lane.changed and lane.holder then
      redis.call('HSET', LANES, lane.name, lane.holder)
    elseif lane.changed then
      redis.call('HDEL', LANES, lane.name)
    end
  end
end

local function write_meta()
  local fields = {}
  for field, value in pairs(meta_changes) do
    push(fields, field)
    push(fields, value)
  end
  if #fields > 0 then redis.call('HSET', META, unpack(fields)) end
end

local function write_events()
  if #noted == 0 or options.events == 0 then return end
  local entry = {}
  for _, event in ipairs(noted) do
    push(entry, event)
    push(entry, table.concat(notes[event], '\n'))
  end
  redis.call('XADD', EVENTS, 'MAXLEN', '~', options.events, '*', unpack(entry))
end

-- Write everything, and keep *memory* for a repeat of this call.
local function close(answer, memory)
  plan_all()
  local wake = wanted and redis.call('LLEN', WAKE) == 0
  check_keys()

  write_sets()
  for _, job in ipairs(touched) do
    if job.id and not job.gone then write_record(job) end
  end
  write_lanes()
  write_meta()
  write_events()
  if wake then redis.call('RPUSH', WAKE, '1') end
  remember(memory)
  return answer
end
