-- register: an instance of an app, alive from now on; the same id again replaces it.
--
-- keys   said     hash     by id: what the instance said of itself
--        owners   hash     by id: its app
--        sizes    hash     by app: how many instances it has
--        alive    zset     ids by the end of their time, ms
--        changes  zset     ids by the version in which they were said last
--        version  string   grows with every change
-- args   id       text     made of app and address
--        app      text     whose instance
--        about    bytes    what it says of itself
--        lasts    int      for how long it is alive, ms
--        keep     int      how long one that is not alive any more is listed, ms
--        most_of_app int   the most instances of an app
--        most     int      the most instances of all apps
-- reply  ok
--        TOO_MANY_OF_APP
--        TOO_MANY
-- uses   clock
-- cost   O(log n); up to 100 that are not alive any more are forgotten
-- full   refused

local replaced = redis.call('HEXISTS', SAID, id) == 1
local mine = tonumber(redis.call('HGET', SIZES, app) or 0)
local all = redis.call('HLEN', SAID)

-- Whoever is not alive is listed for a while, unless that would keep somebody else out.
local full = not replaced and (mine >= most_of_app or all >= most)
local ended = redis.call('ZRANGEBYSCORE', ALIVE, '-inf', int(full and now or now - keep), 'LIMIT', 0, 100)
local forgotten, gone = {}, {}
for _, other in ipairs(ended) do
  if other ~= id then
    local owner = redis.call('HGET', OWNERS, other)
    gone[owner] = (gone[owner] or 0) + 1
    forgotten[#forgotten + 1] = other
  end
end
if not replaced and mine - (gone[app] or 0) >= most_of_app then return 'TOO_MANY_OF_APP' end
if not replaced and all - #forgotten >= most then return 'TOO_MANY' end
-- Times, so that a store that was emptied never counts up to a version that was seen before.
local version = math.max(now, tonumber(redis.call('GET', VERSION) or 0) + 1)

redis.call('SET', VERSION, int(version))
redis.call('HSET', SAID, id, about)
redis.call('HSET', OWNERS, id, app)
redis.call('ZADD', ALIVE, int(now + lasts), id)
redis.call('ZADD', CHANGES, int(version), id)
if not replaced then redis.call('HINCRBY', SIZES, app, 1) end
for _, other in ipairs(forgotten) do
  redis.call('HDEL', SAID, other)
  redis.call('HDEL', OWNERS, other)
  redis.call('ZREM', ALIVE, other)
  redis.call('ZREM', CHANGES, other)
end
for owner, count in pairs(gone) do
  if redis.call('HINCRBY', SIZES, owner, -count) <= 0 then redis.call('HDEL', SIZES, owner) end
end
return 'ok'
