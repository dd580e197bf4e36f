-- owners: which owner a type without an app has. An owner that is gone keeps its type for a while.

local function lasts(alive_until)
  return alive_until and tonumber(alive_until) + owner_keeps > now
end

-- Whether an owner keeps its type: plug-in workers by the last one of them, an app by its own time.
local function holds(owner, name, bare_queue)
  if owner == 'plugin' then
    return lasts(redis.call('ZREVRANGE', ALIVE .. bare_queue, 0, 0, 'WITHSCORES')[2])
  end
  return owner ~= '' and lasts(redis.call('ZSCORE', APPS .. name, string.sub(owner, 5)))
end

-- Returns the apps that serve a type, without those that have been gone for `owner_keeps`.
local function apps_of(name)
  return redis.call('ZRANGEBYSCORE', APPS .. name, '(' .. int(now - owner_keeps), '+inf')
end
