-- plan: what the changes in memory come to, key by key. Still nothing is written.

local plan, plan_order = {}, {}   -- zset key -> {add = {...}, rem = {...}}
local loads = {}                  -- key, payload, key, payload, ...
local fresh, unlinks = {}, {}     -- keys to be written anew, and to be removed

local function zset(key)
  if not plan[key] then
    plan[key] = { add = {}, rem = {} }
    plan_order[#plan_order + 1] = key
  end
  return plan[key]
end

local function zrem(key, id) table.insert(zset(key).rem, id) end

local function zadd(key, score, id)
  local add = zset(key).add
  add[#add + 1] = score
  add[#add + 1] = id
end

local function push(list, value) list[#list + 1] = value end

local function plan_sets(job)
  local from, to = ZSET[job.stored], not job.gone and ZSET[job.state] or nil
  if from and from ~= to then zrem(from, job.id) end
  if to and job.score then zadd(to, job.score, job.id) end
  if job.lane and job.stored == 'waiting' and job.state ~= 'waiting' then
    zrem(LANE(job.lane), job.id)
  elseif job.lane and job.state == 'waiting' and job.stored ~= 'waiting' then
    zadd(LANE(job.lane), job.tick, job.id)
  end
  if job.forget_at then zadd(SEEN, job.forget_at, job.id) end
end

local function plan_keys(job)
  if job.ttl then push(fresh, LOCK(job.id)) end
  if job.expire then push(fresh, LOAD(job.id)) end
  if not job.stored and job.state then push(fresh, JOB(job.id)) end
  if job.load then
    push(fresh, LOAD(job.id))
    push(loads, LOAD(job.id))
    push(loads, job.load)
  end
  if job.stored == 'leased' and job.state ~= 'leased' then push(unlinks, LOCK(job.id)) end
  if job.gone or job.anew then push(unlinks, JOB(job.id)) end
  if job.gone then push(unlinks, LOAD(job.id)) end
end

local function plan_all()
  for key, ids in pairs(removals) do
    for _, id in ipairs(ids) do zrem(key, id) end
  end
  for _, job in ipairs(touched) do
    plan_sets(job)
    plan_keys(job)
  end
end
