-- limit: how many jobs a worker holds that it claimed with a limit.
--
-- uses   more_keys

local HELD_LOOK = 100  -- entries that one call compares with their jobs

local function is_counted(job, worker)
  return job.stored == 'leased' and job.counted and job.worker == worker
end

-- How many more jobs the worker may take; none if that is not above 0. Jobs that this same call has
-- settled or reaped no longer count.
local function room_of(worker, max_held)
  local key = HELD .. worker
  local room = max_held - redis.call('ZCARD', key)
  for i = 1, #changed do
    local job = changed[i]
    if is_counted(job, worker) and job.state ~= 'leased' then room = room + 1 end
  end
  if room > 0 then return room end
  -- Before the worker gets nothing, check the entries: those without a lease do not count.
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
