-- limit: how many jobs a worker holds of those that it claimed with a limit.
--
-- uses   more_keys

local HELD_LOOK = 100  -- entries that one look compares with their records

local function is_counted(job, worker)
  return job.stored == 'leased' and job.counted and job.worker == worker
end

-- How many more it may take; none if that is not above 0. What this very call has settled or
-- reaped is held no longer.
local function room_of(worker, max_held)
  local key = HELD .. worker
  local room = max_held - redis.call('ZCARD', key)
  for i = 1, #changed do
    local job = changed[i]
    if is_counted(job, worker) and job.state ~= 'leased' then room = room + 1 end
  end
  if room > 0 then return room end
  -- Before it gets nothing: an entry that no lease accounts for does not count.
  local ids = redis.call('ZRANGE', key, 0, HELD_LOOK - 1)
  read_jobs(ids)
  for _, id in ipairs(ids) do
    if not is_counted(jobs[id], worker) then
      take_out(key, id)
      room = room + 1
    end
  end
  return room
end
