-- holdings: what is counted of the budget. A part counts for the bytes that are there (`floor`);
-- while bodies of it come, for all of it (`extent`), or for more if they bring more (`own`).

local STEADY = 10000 -- ms over which the rate is taken at which room comes free
local LONGEST = 60000 -- ms that anybody is told to wait: parts may be stored sooner than foreseen

local function look(member)
  local size, holder = string.match(redis.call('HGET', SIZES, member) or '', '^(%d+) (.*)$')
  local words = size and redis.call('HGET', PARTS, member) or ''
  local floor, own, extent, bodies = string.match(words, '^(%d+) (%d+) (%d+) (%d+)$')
  local part = { member = member, size = tonumber(size or 0), holder = holder }
  -- What an earlier release counted has no words: all of it may be there.
  part.floor, part.own = tonumber(floor or part.size), tonumber(own or 0)
  part.extent, part.bodies = tonumber(extent or 0), tonumber(bodies or 0)
  return part
end

-- How many bytes have come free lately, in one field for each owner and one for all.
local function drain(field, bytes)
  local at, amount = string.match(redis.call('HGET', DRAINED, field) or '', '^(%d+) (%d+)$')
  amount = at and amount * math.exp((at - now) / STEADY) or 0
  redis.call('HSET', DRAINED, field, int(now) .. ' ' .. int(amount + bytes))
end

-- Counts a part anew after it was changed.
local function count(part)
  local size = part.floor + part.own
  if part.bodies > 0 then size = math.max(size, part.extent) else part.extent = 0 end
  local more = size - part.size
  if more < 0 then
    drain('all', -more)
    drain('of ' .. part.holder, -more)
  end
  if redis.call('INCRBY', TOTAL, int(more)) <= 0 then redis.call('UNLINK', TOTAL, DRAINED) end
  if redis.call('HINCRBY', SHARES, part.holder, int(more)) <= 0 then
    redis.call('HDEL', SHARES, part.holder)
    redis.call('HDEL', DRAINED, 'of ' .. part.holder)
  end
  if size == 0 and part.bodies == 0 then
    redis.call('HDEL', SIZES, part.member)
    redis.call('HDEL', PARTS, part.member)
    redis.call('ZREM', RESERVED, part.member)
    redis.call('SREM', UNSURE, part.member)
    return
  end
  redis.call('HSET', SIZES, part.member, int(size) .. ' ' .. part.holder)
  redis.call('HSET', PARTS, part.member,
    string.format('%d %d %d %d', part.floor, part.own, part.extent, part.bodies))
end

-- The bytes of a part are gone, or nobody will ask for them.
local function release(member)
  local part = look(member)
  if not part.holder then
    redis.call('ZREM', RESERVED, member)
    return
  end
  part.floor = 0
  count(part)
end

-- A body has ended; so many bytes of it stay. Without a number its server died: if its bytes stay,
-- all of them may be there until somebody looks. False if nothing is known of the body.
local function finish(lease, came)
  local words = redis.call('HGET', BODIES, lease) or ''
  local own, stays, member = string.match(words, '^(%d+) (%d+) (.*)$')
  if not own then return false end
  redis.call('ZREM', LEASES, lease)
  redis.call('HDEL', BODIES, lease)
  local part = look(member)
  if not part.holder then return false end
  part.own, part.bodies = math.max(part.own - own, 0), math.max(part.bodies - 1, 0)
  part.floor = part.floor + (came or tonumber(stays) > 0 and tonumber(own) or 0)
  count(part)
  if part.floor > 0 and tonumber(stays) > 0 then
    redis.call('ZADD', RESERVED, 'GT', now + stays, member)
    if not came then redis.call('SADD', UNSURE, member) end
  end
  return true
end

-- Bodies whose server is dead, and bytes that have expired: some at a time.
local function release_late()
  local late = redis.call('ZRANGEBYSCORE', LEASES, '-inf', int(now), 'LIMIT', 0, 100)
  for _, lease in ipairs(late) do
    if not finish(lease) then redis.call('ZREM', LEASES, lease) end
  end
  late = redis.call('ZRANGEBYSCORE', RESERVED, '-inf', int(now), 'LIMIT', 0, 100)
  for _, member in ipairs(late) do release(member) end
end
