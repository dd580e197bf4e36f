-- holdings: what is reserved of the budget. What was not renewed in time goes, some at a time.

local function release(member)
  local size, holder = string.match(redis.call('HGET', SIZES, member) or '', '^(%d+) (.*)$')
  redis.call('ZREM', RESERVED, member)
  if not size then return end
  redis.call('HDEL', SIZES, member)
  if redis.call('DECRBY', TOTAL, size) <= 0 then redis.call('UNLINK', TOTAL) end
  if redis.call('HINCRBY', SHARES, holder, -size) <= 0 then redis.call('HDEL', SHARES, holder) end
end

local function release_expired()
  local late = redis.call('ZRANGEBYSCORE', RESERVED, '-inf', int(now), 'LIMIT', 0, 100)
  for _, member in ipairs(late) do
    release(member)
  end
end
