-- ensure: create a type unless it exists, and store when it was used. Called before each submit.
--
-- keys   types    hash     key of a type -> its queue
--        used     zset     keys by when they were last used, ms
--        owners   hash     type that is used without an app -> plugin, app:<name>, '' = nobody yet
--        apps:    zset     by type: the apps that serve it, by the time until they are alive, ms
--        alive:   zset     by queue: who serves it, by the time until they are alive, ms
--        version  string   grows with each change of keys and owners
-- args   app      text     '' = none
--        name     text     what it is called
--        key      text     its key
--        queue    text     its queue
--        owner_keeps int   how long an owner that is gone keeps its type, ms
--        most     int      types that there may be
-- stored note             under this name its calls are remembered, as by releases before
-- reply  ok
--        TYPE_AMBIGUOUS <app> …
--        TYPES_FULL
-- cost   O(log n)
-- full   refused
-- uses   clock owners

local owner, before = nil, redis.call('HGET', OWNERS, name)
if app == '' and not (before and holds(before, name, queue)) then
  local apps = apps_of(name)
  if #apps > 1 then return { 'TYPE_AMBIGUOUS', unpack(apps, 1, 20) } end
  owner = apps[1] and 'app:' .. apps[1] or before or ''
end
local known = redis.call('HEXISTS', TYPES, key) == 1
if not known and redis.call('HLEN', TYPES) >= most then return { 'TYPES_FULL' } end

redis.call('ZADD', USED, now, key)
if not known then redis.call('HSET', TYPES, key, queue) end
if owner and owner ~= before then redis.call('HSET', OWNERS, name, owner) end
if not known or (owner and owner ~= before) then redis.call('INCRBY', VERSION, 1) end
return { 'ok' }
