-- oldest: when the oldest job was submitted that is next in line.

local PRIORITIES = 101

-- The ready set is ordered by priority first, so each priority's own head is looked at.
local function oldest_ready()
  local oldest, from = nil, '-inf'
  for _ = 1, PRIORITIES do
    local head = redis.call('ZRANGEBYSCORE', QUEUE, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    if #head == 0 then break end
    local fine, _, submitted_at = pcall(struct.unpack, '<Bd', redis.call('GET', JOB .. head[1]) or '')
    if fine and (not oldest or submitted_at < oldest) then oldest = submitted_at end
    from = int((math.floor(head[2] / 1e13) + 1) * 1e13)
  end
  return oldest
end
