-- choose: which ready jobs a claim gets: highest priority first, then longest ready.

local function by_score(a, b)
  if a.score ~= b.score then return a.score < b.score end
  return a.job.id < b.job.id
end

-- Candidates: the first of the stored ready set, and what this call itself made ready.
local function ready_candidates(most)
  local found = {}
  local stored = redis.call('ZRANGE', QUEUE, 0, most - 1, 'WITHSCORES')
  for i = 1, #stored, 2 do
    local job = read_job(stored[i])
    if job.stored == 'ready' and job.state == 'ready' then
      found[#found + 1] = { job = job, score = tonumber(stored[i + 1]) }
    else
      set_aside(QUEUE, job.id)
    end
  end
  for _, job in ipairs(touched) do
    if job.state == 'ready' and job.stored ~= 'ready' then
      found[#found + 1] = { job = job, score = job.score }
    end
  end
  table.sort(found, by_score)
  return found
end

local function lane_candidates(name)
  local holder = read_lane(name).holder
  local job = holder and read_job(holder)
  if not job or job.state ~= 'ready' then return {} end
  return { { job = job, score = 0 } }
end

-- The payloads, and the jobs without one set aside: a worker can do nothing with them.
local function with_loads(found, most)
  local names, chosen = {}, {}
  for i = 1, math.min(most, #found) do names[i] = LOAD(found[i].job.id) end
  if #names == 0 then return chosen end
  for i, load in ipairs(redis.call('MGET', unpack(names))) do
    if load then
      chosen[#chosen + 1] = { job = found[i].job, load = load }
    else
      bury(found[i].job, 'NO_PAYLOAD: the payload is not there')
    end
  end
  return chosen
end
