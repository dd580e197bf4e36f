-- leave: an instance is called no more, and forgotten.
--
-- keys   said     hash     by id: what the instance said of itself
--        owners   hash     by id: its app
--        sizes    hash     by app: how many instances it has
--        alive    zset     ids by the end of their time, ms
--        changes  zset     ids by the version in which they were said last
--        version  string   grows with every change
-- args   id       text     which instance
--        app      text     whose instance
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
redis.call('SET', VERSION, int(version))
return 'ok'
