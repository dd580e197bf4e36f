-- plan: what the changes in memory come to, key by key. Still nothing is written.

local plan, plan_order = {}, {}   -- zset key -> {add = {...}, rem = {...}}
local loads = {}                  -- key, payload, key, payload, ...
local fresh, unlinks = {}, {}     -- keys to be written anew, and to be removed

local function zset(key)
  local sets = plan[key]
  if not sets then
    sets = { add = {}, rem = {} }
    plan[key] = sets
    plan_order[#plan_order + 1] = key
  end
  return sets
end

local function push(list, value) list[#list + 1] = value end

local function zrem(key, id) push(zset(key).rem, id) end

local function zadd(key, score, id)
  local add = zset(key).add
  add[#add + 1] = score
  add[#add + 1] = id
end

local function plan_lane(job)
  if job.stored == 'waiting' and job.state ~= 'waiting' then
    zrem(LANE(job.lane), job.id)
  elseif job.state == 'waiting' and job.stored ~= 'waiting' then
    zadd(LANE(job.lane), job.tick, job.id)
  end
end

local function plan_sets(job)
  local from, to = ZSET[job.stored], not job.gone and ZSET[job.state] or nil
  if from and from ~= to then zrem(from, job.id) end
  if to and job.score then zadd(to, job.score, job.id) end
  if job.lane then plan_lane(job) end
  if job.forget_at then zadd(SEEN, job.forget_at, job.id) end
end

local function plan_load(job)
  local key = LOAD(job.id)
  push(fresh, key)
  push(loads, key)
  push(loads, job.load)
end

local function plan_keys(job)
  if job.load then plan_load(job) end
  if job.ttl then
    job.lock = LOCK(job.id)
    push(fresh, job.lock)
  end
  if job.expire then push(fresh, LOAD(job.id)) end
  if not job.stored and job.state then push(fresh, job.key) end
  if job.stored == 'leased' and job.state ~= 'leased' then push(unlinks, LOCK(job.id)) end
  if job.gone or job.anew then push(unlinks, job.key) end
  if job.gone then push(unlinks, LOAD(job.id)) end
end

local function plan_all()
  for key, ids in pairs(removals) do
    for _, id in ipairs(ids) do zrem(key, id) end
  end
  for _, job in ipairs(touched) do
    if job.id then
      plan_sets(job)
      plan_keys(job)
    end
  end
end
