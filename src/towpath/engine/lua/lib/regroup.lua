-- regroup: which error groups are added and deleted with the jobs that this call changes.
--
-- uses   send sets grouping

local left_over = {}  -- sets of all groups, to be deleted with whatever is in them

-- Whether a set is empty once this call has written.
local function empties(key)
  local set, gone = sets[key], {}
  if not set or #set.add > 0 or #set.rem == 0 then return false end
  local left = redis.call('ZCARD', key)
  for _, id in ipairs(set.rem) do
    if not gone[id] and redis.call('ZSCORE', key, id) then left = left - 1 end
    gone[id] = true
  end
  return left == 0
end

-- Once no job is dead, all groups are deleted, also those with stray entries.
local function plan_groups()
  if not next(groups) then return end
  for _, group in ipairs(empties(DEAD) and redis.call('HKEYS', GROUPS) or {}) do
    groups[group] = false
    left_over[#left_over + 1] = GROUP .. group
  end
  redis.call('HLEN', GROUPS)
  for group in pairs(groups) do
    if groups[group] and empties(GROUP .. group) then groups[group] = false end
  end
end

local function write_groups()
  send('UNLINK', left_over)
  for group, text in pairs(groups) do
    if not text then
      redis.call('HDEL', GROUPS, group)
    elseif text ~= true then
      redis.call('HSET', GROUPS, group, text)
    end
  end
end
