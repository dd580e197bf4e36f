-- owners: who counts as the owner of a type without an app. An owner that is gone keeps it a while.

local function lasts(alive_until)
  return alive_until and tonumber(alive_until) + owner_keeps > now
end

-- Whether an owner still counts: plug-in workers by the last of them, an app by its own time.
local function holds(owner, name, bare_queue)
  if owner == 'plugin' then
    return lasts(redis.call('ZREVRANGE', ALIVE .. bare_queue, 0, 0, 'WITHSCORES')[2])
  end
  return owner ~= '' and lasts(redis.call('ZSCORE', APPS .. name, string.sub(owner, 5)))
end

-- The apps that serve a type, those that are gone for long aside.
local function apps_of(name)
  return redis.call('ZRANGEBYSCORE', APPS .. name, '(' .. int(now - owner_keeps), '+inf')
end
