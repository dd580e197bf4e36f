-- outlook: what a claimer wants to know when it has to wait.

local function first_after_now(key)
  local later = '(' .. int(now)
  return tonumber(redis.call('ZRANGEBYSCORE', key, later, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
end

-- When something falls due without anybody's doing: a delayed job, or a lease that ends. Now, if
-- there is more to be had at once.
local function next_due(at_once)
  if at_once then return now end
  local due = math.min(first_after_now(RETRY) or math.huge, first_after_now(LEASES) or math.huge)
  for i = 1, #changed do
    if changed[i].state == 'delayed' then due = math.min(due, changed[i].due) end
  end
  return due < math.huge and due or 0
end

local function ready_left()
  local left = redis.call('ZCARD', QUEUE) - #(strays[QUEUE] or {})
  for i = 1, #changed do
    local stored, state = changed[i].stored, changed[i].state
    if stored == 'ready' and state ~= 'ready' then left = left - 1 end
    if state == 'ready' and stored ~= 'ready' then left = left + 1 end
  end
  return left
end
