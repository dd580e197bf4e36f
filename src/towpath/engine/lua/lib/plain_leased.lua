-- plain_leased: what the short way of a claim writes.

-- The sets were read before. The first write needs no memory: with memory full, work goes on.
local function write_leases(worker)
  local n = #taken
  meta.asked_at = now
  if n == 0 then return redis.call('UNLINK', LOCK) end  -- no job has an empty id
  meta.token = memory[2 * n + 2]
  redis.call('ZREMRANGEBYRANK', QUEUE, 0, n - 1)  -- those that were read: half the cost of ZREM
  redis.call('MSET', unpack(puts))
  redis.call('ZADD', LEASES, unpack(expiries))
  for i = 1, n do
    redis.call('SET', LOCK .. taken[i], worker .. ' ' .. int(memory[2 * i + 2]), 'PX', lasting)
  end
  event_ids[#event_ids + 1] = 'claim'
  event_ids[#event_ids + 1] = taken
end
