-- oldest: when the oldest of the jobs that are next in their priority was submitted. (Only about, if
-- ticks are hours ahead of the clock because it was set back.)
--
-- uses   head

local PRIORITIES = 101

-- The ready set is ordered by priority first, so each priority's own head is looked at.
local function oldest_ready()
  local oldest, from = nil, '-inf'
  for _ = 1, PRIORITIES do
    local head = redis.call('ZRANGEBYSCORE', QUEUE, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    if #head == 0 then break end
    local fine, _, tick, ahead = pcall(struct.unpack, START, redis.call('GET', JOB .. head[1]) or '')
    if fine and (not oldest or tick - ahead < oldest) then oldest = tick - ahead end
    from = int((math.floor(head[2] / 1e13) + 1) * 1e13)
  end
  return oldest
end
