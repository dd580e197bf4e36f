-- choose: which ready jobs a claim gets: highest priority first, then longest ready.

local function by_place(a, b)
  if a.place ~= b.place then return a.place < b.place end
  return a.id < b.id
end

-- The first of the stored ready set, in order.
local function stored_ready(most)
  local found = {}
  local stored = redis.call('ZRANGE', QUEUE, 0, most - 1, 'WITHSCORES')
  for i = 1, #stored, 2 do
    local job = read_job(stored[i])
    if job.state == 'ready' and job.stored == 'ready' then
      job.place = tonumber(stored[i + 1])
      found[#found + 1] = job
    else
      set_aside(QUEUE, stored[i])
    end
  end
  return found
end

-- Those, and what this call itself made ready: it is nowhere in the store yet.
local function ready_candidates(most)
  local found = stored_ready(most)
  local stored_count = #found
  for _, job in ipairs(touched) do
    if job.state == 'ready' and job.stored ~= 'ready' then
      job.place = job.score
      found[#found + 1] = job
    end
  end
  if #found > stored_count then table.sort(found, by_place) end
  return found
end

local function lane_candidates(name)
  local holder = read_lane(name).holder
  local job = holder and read_job(holder)
  return job and job.state == 'ready' and { job } or {}
end

-- The first *most* with their payloads; jobs without one are set aside: no worker can run them.
local function choose(found, most)
  local names, chosen, payloads = {}, {}, {}
  for i = 1, math.min(most, #found) do names[i] = LOAD(found[i].id) end
  if #names == 0 then return chosen, payloads end
  for i, load in ipairs(redis.call('MGET', unpack(names))) do
    if load then
      chosen[#chosen + 1] = found[i]
      payloads[#payloads + 1] = load
    else
      bury(found[i], 'NO_PAYLOAD: the payload is not there')
    end
  end
  return chosen, payloads
end
