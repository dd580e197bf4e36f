-- register: add an instance of an app, alive from now on; the same id again replaces it.
--
-- keys   said     hash     by id: the description of the instance
--        owners   hash     by id: its app, and its owner behind a NUL if it has one
--        sizes    hash     by app and owner: how many instances there are
--        held     hash     by owner: how many instances it has, of all apps
--        alive    zset     ids by the time until which they are alive, ms
--        changes  zset     ids by the version of their last registration
--        version  string   grows with every change
-- args   id       text     made of app, address and owner
--        app      text     whose instance: the app, and the owner behind a NUL if it has one
--        owner    text     the owner; '' = none
--        about    bytes    its description
--        lasts    int      how long it is alive from now, ms
--        keep     int      how long a dead instance stays in the list, ms
--        most_of_app int   maximum number of instances of one owner of one app
--        instances_per_owner int maximum number of instances of one owner, of all apps
--        most     int      maximum number of instances of all apps
-- reply  ok
--        TOO_MANY_OF_APP
--        TOO_MANY_OF_OWNER
--        TOO_MANY
-- uses   clock
-- cost   O(log n); up to 100 dead instances are deleted
-- full   refused

local replaced = redis.call('HEXISTS', SAID, id) == 1
local mine = tonumber(redis.call('HGET', SIZES, app) or 0)
local owned = owner ~= '' and tonumber(redis.call('HGET', HELD, owner) or 0) or 0
local all = redis.call('HLEN', SAID)

-- Dead instances stay in the list for a while, unless a limit is reached: then they make room.
local full = not replaced and (mine >= most_of_app or owned >= instances_per_owner or all >= most)
local ended = redis.call('ZRANGEBYSCORE', ALIVE, '-inf', int(full and now or now - keep), 'LIMIT', 0, 100)
local forgotten, gone, given_back = {}, {}, {}
for _, other in ipairs(ended) do
  if other ~= id then
    local whose = redis.call('HGET', OWNERS, other)
    gone[whose] = (gone[whose] or 0) + 1
    local its_owner = string.match(whose, '%z(.*)$')
    if its_owner then given_back[its_owner] = (given_back[its_owner] or 0) + 1 end
    forgotten[#forgotten + 1] = other
  end
end
if not replaced and mine - (gone[app] or 0) >= most_of_app then return 'TOO_MANY_OF_APP' end
if not replaced and owned - (given_back[owner] or 0) >= instances_per_owner then return 'TOO_MANY_OF_OWNER' end
if not replaced and all - #forgotten >= most then return 'TOO_MANY' end
-- Versions are times, so that after a loss of data no version comes twice.
local version = math.max(now, tonumber(redis.call('GET', VERSION) or 0) + 1)

redis.call('SET', VERSION, int(version))
redis.call('HSET', SAID, id, about)
redis.call('HSET', OWNERS, id, app)
redis.call('ZADD', ALIVE, int(now + lasts), id)
redis.call('ZADD', CHANGES, int(version), id)
if not replaced then redis.call('HINCRBY', SIZES, app, 1) end
if not replaced and owner ~= '' then redis.call('HINCRBY', HELD, owner, 1) end
for _, other in ipairs(forgotten) do
  redis.call('HDEL', SAID, other)
  redis.call('HDEL', OWNERS, other)
  redis.call('ZREM', ALIVE, other)
  redis.call('ZREM', CHANGES, other)
end
for whose, count in pairs(gone) do
  if redis.call('HINCRBY', SIZES, whose, -count) <= 0 then redis.call('HDEL', SIZES, whose) end
end
for its_owner, count in pairs(given_back) do
  if redis.call('HINCRBY', HELD, its_owner, -count) <= 0 then redis.call('HDEL', HELD, its_owner) end
end
return 'ok'
