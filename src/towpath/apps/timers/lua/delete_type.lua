-- delete_type: delete an unused type, unless it was used since the caller read it.
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
--        seen     int      when it was last used, as the caller knows
-- stored discard          under this name its calls are remembered, as by releases before
-- reply  ok
--        TYPE_USED
-- cost   O(log n)
-- full   works
-- uses   clock

local last = redis.call('ZREVRANGE', ALIVE .. queue, 0, 0, 'WITHSCORES')[2]
if tonumber(redis.call('ZSCORE', USED, key) or 0) ~= seen or (last and tonumber(last) > now) then
  return 'TYPE_USED'
end

redis.call('HDEL', TYPES, key)
redis.call('ZREM', USED, key)
redis.call('DEL', ALIVE .. queue)
if app == '' then
  redis.call('HDEL', OWNERS, name)
else
  redis.call('ZREM', APPS .. name, app)
end
redis.call('INCRBY', VERSION, 1)
return 'ok'
