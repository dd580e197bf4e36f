-- holdings: the counted bytes of the budget. A part counts for its received bytes (`floor`) and
-- what arriving bodies bring (`own`); while bodies arrive, at least for all of it (`extent`).

local STEADY = 10000 -- ms of the average for the rate at which room is freed
local LONGEST = 60000 -- longest wait in a refusal, ms: parts may be stored sooner than expected

local function look(member)
  local size, holder = string.match(redis.call('HGET', SIZES, member) or '', '^(%d+) (.*)$')
  local words = size and redis.call('HGET', PARTS, member) or ''
  local floor, own, extent, bodies = string.match(words, '^(%d+) (%d+) (%d+) (%d+)$')
  local part = { member = member, size = tonumber(size or 0), holder = holder }
  -- An earlier release did not write `parts`: all counted bytes may be in Redis.
  part.floor, part.own = tonumber(floor or part.size), tonumber(own or 0)
  part.extent, part.bodies = tonumber(extent or 0), tonumber(bodies or 0)
  return part
end

-- Adds to the bytes that were freed lately, in one field for each holder and one for all.
local function drain(field, bytes)
  local at, amount = string.match(redis.call('HGET', DRAINED, field) or '', '^(%d+) (%d+)$')
  amount = at and amount * math.exp((at - now) / STEADY) or 0
  redis.call('HSET', DRAINED, field, int(now) .. ' ' .. int(amount + bytes))
end

-- Writes a part that was changed, and counts it again.
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

-- Releases the received bytes of a part, which are gone or not needed.
local function release(member)
  local part = look(member)
  if not part.holder then
    redis.call('ZREM', RESERVED, member)
    return
  end
  part.floor = 0
  count(part)
end

-- Ends the lease of a body of which `came` bytes stay. If `came` is nil its server died: bytes that
-- stay are counted in full until they are counted in Redis. False if there is no such lease.
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

-- Ends expired leases and releases expired reservations, up to 100 of each.
local function release_late()
  local late = redis.call('ZRANGEBYSCORE', LEASES, '-inf', int(now), 'LIMIT', 0, 100)
  for _, lease in ipairs(late) do
    if not finish(lease) then redis.call('ZREM', LEASES, lease) end
  end
  late = redis.call('ZRANGEBYSCORE', RESERVED, '-inf', int(now), 'LIMIT', 0, 100)
  for _, member in ipairs(late) do release(member) end
end
