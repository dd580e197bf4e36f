-- roster: all instances and how long each is alive; and registrations since a version.
--
-- keys   said     hash     by id: the description of the instance
--        alive    zset     ids by the time until which they are alive, ms
--        changes  zset     ids by the version of their last registration
-- args   seen     int      the version up to which the caller knows them; 0 = none
--        most     int      how many changes are returned at most
-- reply  <now, ids with the time until which they are alive, changes: id, version, description, …>
-- uses   clock
-- cost   O(instances + changes)
-- full   works

local ids = redis.call('ZRANGE', ALIVE, 0, -1, 'WITHSCORES')
local since = '(' .. int(seen)
local changed = redis.call('ZRANGEBYSCORE', CHANGES, since, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
local changes = {}
for i = 1, #changed, 2 do
  changes[#changes + 1] = changed[i]
  changes[#changes + 1] = changed[i + 1]
  changes[#changes + 1] = redis.call('HGET', SAID, changed[i])
end
return { int(now), ids, changes }
