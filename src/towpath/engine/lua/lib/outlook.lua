-- outlook: what a claimer needs to know when it has to wait.
--
-- uses   more_keys

local function first_after_now(key)
  local later = '(' .. int(now)
  return tonumber(redis.call('ZRANGEBYSCORE', key, later, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
end

-- When the next delayed job falls due or the next lease ends; 0 = neither is to come. Now, if there is
-- more to claim at once.
local function next_due(at_once)
  if at_once then return now end
  local due = math.min(first_after_now(RETRY) or math.huge, first_after_now(LEASES) or math.huge)
  for i = 1, #changed do
    if changed[i].state == 'delayed' then due = math.min(due, changed[i].due) end
  end
  return due < math.huge and due or 0
end

-- How many jobs are ready after this call: of all, or of one *selector*.
local function ready_left(selector)
  local key = selector and SELECTOR .. selector or QUEUE
  local left = redis.call('ZCARD', key) - #(strays[key] or {})
  for i = 1, #changed do
    local stored, state = changed[i].stored, changed[i].state
    if selector and changed[i].selector ~= selector then stored, state = nil, nil end
    if stored == 'ready' and state ~= 'ready' then left = left - 1 end
    if state == 'ready' and stored ~= 'ready' then left = left + 1 end
  end
  return left
end
