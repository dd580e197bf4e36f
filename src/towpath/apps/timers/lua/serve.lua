-- serve: register a plug-in worker, or an instance of an app, that serves these types. All or none.
--
-- keys   types    hash     key of a type -> its queue
--        used     zset     keys by when they were last used, ms
--        owners   hash     type that is used without an app -> plugin, app:<name>, '' = nobody yet
--        apps:    zset     by type: the apps that serve it, by the time until they are alive, ms
--        alive:   zset     by queue: who serves it, by the time until they are alive, ms
--        version  string   grows with each change of keys and owners
-- args   app      text     '' = a plug-in worker
--        who      text     which worker or instance
--        types    list     of each type: its name, its key, its queue, its queue without the app
--        alive    int      how long that counts, ms
--        owner_keeps int   how long an owner that is gone keeps its type, ms
--        most     int      types that there may be
-- reply  ok
--        TYPE_TAKEN <type> <owner>
--        TYPES_FULL
-- cost   O(types log n)
-- full   refused
-- uses   clock owners

local me = app == '' and 'plugin' or 'app:' .. app
local known, own = {}, {}
local count = redis.call('HLEN', TYPES)
for i, each in ipairs(types) do
  local name, bare_queue = each[1], each[4]
  local owner = redis.call('HGET', OWNERS, name)
  if owner and owner ~= me then
    if holds(owner, name, bare_queue) then return { 'TYPE_TAKEN', name, owner } end
    local others = apps_of(name)
    own[i] = app == '' or #others == 0 or (#others == 1 and others[1] == app)
  elseif not owner then
    own[i] = app == ''
  end
  known[i] = redis.call('HEXISTS', TYPES, each[2]) == 1
  if not known[i] then count = count + 1 end
  if not known[i] and count > most then return { 'TYPES_FULL' } end
end

local changed = false
for i, each in ipairs(types) do
  local name, key, queue = each[1], each[2], each[3]
  if not known[i] then redis.call('HSET', TYPES, key, queue) end
  if own[i] then redis.call('HSET', OWNERS, name, me) end
  changed = changed or not known[i] or own[i]
  redis.call('ZADD', USED, now, key)
  redis.call('ZREMRANGEBYSCORE', ALIVE .. queue, '-inf', '(' .. int(now - owner_keeps))
  redis.call('ZADD', ALIVE .. queue, now + alive, who)
  if app ~= '' then redis.call('ZADD', APPS .. name, now + alive, app) end
end
if changed then redis.call('INCRBY', VERSION, 1) end
return { 'ok' }
