-- close: the only writer. Everything above has only read; what is written here stays, even if
-- a later write fails, so what can fail is tried first: each set is read with its own type,
-- each key that is new is looked for (in a slot that is being moved, that fails).

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

local function check_keys()
  for _, key in ipairs(set_keys) do redis.call('ZCARD', key) end
  if #lanes_touched > 0 then redis.call('HLEN', LANES) end
  if full == 'works' then send('EXISTS', fresh) end
end

-- With memory full Redis refuses a script whose first write may grow it. Work that is under
-- way must go on, so its first write is one that can't; a submit's first write may.
local function write_jobs()
  if full == 'works' then
    if #unlinks == 0 then unlinks[1] = LOCK end  -- no job has an empty id
    send('UNLINK', unlinks)
  end
  for _, key in ipairs(set_keys) do send('ZREM', sets[key].rem, key) end
  send('MSET', puts)
  if full == 'refused' then send('UNLINK', unlinks) end
  for _, key in ipairs(set_keys) do send('ZADD', sets[key].add, key) end
  for _, job in ipairs(locks) do
    redis.call('SET', LOCK .. job.id, job.worker .. ' ' .. int(job.token), 'PX', job.ttl)
  end
  for _, job in ipairs(expiries) do
    redis.call('PEXPIRE', JOB .. job.id, job.expire)
    redis.call('PEXPIRE', LOAD .. job.id, job.expire)
    if job.result then redis.call('PEXPIRE', RESULT .. job.id, job.expire) end
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
    fields[#fields + 1] = field
    fields[#fields + 1] = value
  end
  if #fields > 0 then redis.call('HSET', META, unpack(fields)) end
end
