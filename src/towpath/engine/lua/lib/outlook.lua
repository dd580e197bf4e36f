-- outlook: what a claimer wants to know when it has to wait.

local function first_after_now(key)
  local later = '(' .. int(now)
  return tonumber(redis.call('ZRANGEBYSCORE', key, later, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
end

-- When something falls due without anybody's doing: a delayed job, or a lease that ends.
local function next_due(swept)
  if swept then return now end
  local due = math.min(first_after_now(RETRY) or math.huge, first_after_now(LEASES) or math.huge)
  for _, job in ipairs(touched) do
    if job.state == 'delayed' and job.score then due = math.min(due, job.score) end
  end
  return due < math.huge and due or 0
end

local function ready_left()
  local left = redis.call('ZCARD', QUEUE) - #(removals[QUEUE] or {})
  for _, job in ipairs(touched) do
    if job.stored == 'ready' and job.state ~= 'ready' then left = left - 1 end
    if job.state == 'ready' and job.stored ~= 'ready' then left = left + 1 end
  end
  return left
end
