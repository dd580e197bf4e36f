-- close: writes all changes; the code before it only reads. Redis keeps what a script wrote before it
-- failed, so all checks come first: each set is read, which fails if its key has another type, and
-- each new key is looked up, which fails in a slot that is being moved.
--
-- uses   history_rows regroup

local function check_keys()
  check_sets()
  if #lanes_touched > 0 then redis.call('HLEN', LANES) end
  plan_groups()
  send('EXISTS', fresh)
end

-- With memory full, Redis refuses a script whose first write may need memory. Work that is under way
-- must go on, so scripts that settle begin with a deletion; those that add jobs are to be refused.
local function write_jobs()
  if full == 'refused' then send('MSET', puts) end
  if #unlinks == 0 and full == 'works' then unlinks[1] = LOCK end  -- no job has an empty id
  send('UNLINK', unlinks)
  write_removals()
  if full == 'works' then send('MSET', puts) end
  write_additions()
  for _, job in ipairs(locks) do
    redis.call('SET', LOCK .. job.id, job.worker .. ' ' .. int(job.token), 'PX', job.ttl)
  end
  for _, each in ipairs(kept) do
    local job, record = unpack(each)
    redis.call('SET', JOB .. job.id, record, 'PX', job.expire)
    if not job.payload then redis.call('PEXPIRE', LOAD .. job.id, job.expire) end
    if job.result then redis.call('SET', RESULT .. job.id, job.result, 'PX', job.expire) end
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

-- Write everything, and keep *memory* for a repeat of this call.
local function close(answer, memory)
  for key, ids in pairs(strays) do
    for _, id in ipairs(ids) do zrem(key, id) end
  end
  for i = 1, #changed do plan_job(changed[i]) end
  local wake = plan_wakeups()
  if #changed > 0 or next(meta_changes) then read_history() end
  check_keys()

  write_jobs()
  write_lanes()
  write_groups()
  write_history()
  write_meta()
  notify(wake)
  remember(memory)
  return answer
end
