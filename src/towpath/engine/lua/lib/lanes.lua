-- lanes: one job of a lane is its holder and may run; the others wait behind it by submission tick.
-- The moves of this call are noted here, because nothing is written yet.

local lanes, lanes_touched = {}, {}
local STRAYS_MOST = 100  -- stray entries that one search skips

local function read_lane(name)
  if lanes[name] then return lanes[name] end
  local lane = { name = name, left = {}, left_count = 0, joined = {} }
  lane.holder = redis.call('HGET', LANES, name) or nil
  lanes[name] = lane
  lanes_touched[#lanes_touched + 1] = lane
  return lane
end

local function hold_lane(lane, id)
  lane.holder, lane.changed = id, true
end

local function leave_waiting(lane, id)
  lane.left[id], lane.left_count = true, lane.left_count + 1
end

-- The first waiting job is nearly always the next entry: others are read only if that is a stray.
local function first_stored(lane)
  local key, last = LANE .. lane.name, lane.left_count + STRAYS_MOST - 1
  local from, to = 0, lane.left_count
  repeat
    for _, id in ipairs(redis.call('ZRANGE', key, from, to)) do
      if not lane.left[id] then
        local job = read_job(id)
        if job.state == 'waiting' then return job end
        set_aside(key, id)
        take_out(WAITING, id)
      end
    end
    from, to = to + 1, last
  until from > last
end

local function first_waiting(lane)
  local first = first_stored(lane)
  for _, job in ipairs(lane.joined) do
    if job.state == 'waiting' and (not first or job.tick - first.tick < 0) then first = job end
  end
  return first
end

-- The holder has left: the job that waits longest takes its place, behind the jobs that are ready
-- now, so that lanes take turns.
local function advance_lane(lane)
  local first = first_waiting(lane)
  hold_lane(lane, first and first.id)
  if first then
    leave_waiting(lane, first.id)
    enter_behind(first)
  end
end

-- Remove *job* from its lane.
local function leave_lane(job)
  if not job.lane then return end
  local lane = read_lane(job.lane)
  if lane.holder == job.id then
    advance_lane(lane)
  elseif job.stored == 'waiting' then
    leave_waiting(lane, job.id)
  end
end

-- Whether *job* may run: it has no lane, or its lane is free or already its own. If not, the job is
-- made to wait in its lane at its submission tick.
local function take_lane(job)
  if not job.lane then return true end
  local lane = read_lane(job.lane)
  if not lane.holder then hold_lane(lane, job.id) end
  if lane.holder == job.id then return true end
  enter(job, 'waiting', job.tick)
  lane.joined[#lane.joined + 1] = job
  return false
end
