-- leave: delete an instance, so that it is not called any more.
--
-- keys   said     hash     by id: the description of the instance
--        owners   hash     by id: its app, and its owner behind a NUL if it has one
--        sizes    hash     by app and owner: how many instances there are
--        held     hash     by owner: how many instances it has, of all apps
--        alive    zset     ids by the time until which they are alive, ms
--        changes  zset     ids by the version of their last registration
--        version  string   grows with every change
-- args   id       text     which instance
--        app      text     whose instance: the app, and the owner behind a NUL if it has one
--        owner    text     the owner; '' = none
-- reply  ok
--        UNKNOWN_INSTANCE
-- uses   clock
-- cost   O(log n)
-- full   works

if redis.call('HGET', OWNERS, id) ~= app then return 'UNKNOWN_INSTANCE' end
local version = math.max(now, tonumber(redis.call('GET', VERSION) or 0) + 1)

redis.call('HDEL', SAID, id)
redis.call('HDEL', OWNERS, id)
redis.call('ZREM', ALIVE, id)
redis.call('ZREM', CHANGES, id)
if redis.call('HINCRBY', SIZES, app, -1) <= 0 then redis.call('HDEL', SIZES, app) end
if owner ~= '' and redis.call('HINCRBY', HELD, owner, -1) <= 0 then redis.call('HDEL', HELD, owner) end
redis.call('SET', VERSION, int(version))
return 'ok'
