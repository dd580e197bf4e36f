-- counts: how many jobs are in each state, and the queue's totals, without a scan.
--
-- keys   queue    zset     ready ids
--        retry    zset     delayed ids
--        waiting  zset     waiting ids
--        leases   zset     leased ids
--        dead     zset     dead ids
--        done     zset     kept ids
--        seen     zset     remembered ids
--        lanes    hash     lanes with a job in the open
--        meta     hash     totals
--        job      string   the oldest ready job of each priority
-- args   clock    ms       '' = the server's
-- reply  <facts>
-- moves  none
-- cost   O(priorities in use · log n)
-- full   works
-- uses   keys clock record

local PRIORITIES = 101

-- The ready set is ordered by priority first, so each priority's own head is looked at.
local function oldest_ready()
  local oldest, from = nil, '-inf'
  for _ = 1, PRIORITIES do
    local head = redis.call('ZRANGEBYSCORE', QUEUE, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    if #head == 0 then break end
    local text = redis.call('GET', JOB .. head[1])
    local at = text and decode(head[1], text).at
    if at and (not oldest or at < oldest) then oldest = at end
    from = int((math.floor(head[2] / 1e13) + 1) * 1e13)
  end
  return oldest
end

local later = '(' .. int(now)
return {
  redis.call('HGETALL', META),
  {
    'now', now,
    'ready', redis.call('ZCARD', QUEUE), 'delayed', redis.call('ZCARD', RETRY),
    'waiting', redis.call('ZCARD', WAITING), 'leased', redis.call('ZCARD', LEASES),
    'dead', redis.call('ZCARD', DEAD), 'kept', redis.call('ZCOUNT', DONE, later, '+inf'),
    'seen', redis.call('ZCOUNT', SEEN, later, '+inf'), 'lanes', redis.call('HLEN', LANES),
    'oldest_at', oldest_ready() or 0,
  },
}
