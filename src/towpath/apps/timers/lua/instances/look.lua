-- look: which instances there are and how long each is alive; what has changed since a version.
--
-- keys   said     hash     by id: what the instance said of itself
--        alive    zset     ids by the end of their time, ms
--        changes  zset     ids by the version in which they were said last
-- args   seen     int      the version up to which the caller knows them; 0 = none
--        most     int      answer with so many changes
-- reply  <now, ids with the end of their time, changes: id, version, what was said, …>
-- uses   clock
-- cost   O(instances + changes)
-- full   works

local ids = redis.call('ZRANGE', ALIVE, 0, -1, 'WITHSCORES')
local since = '(' .. int(seen)
local changed = redis.call('ZRANGEBYSCORE', CHANGES, since, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
local told = {}
for i = 1, #changed, 2 do
  told[#told + 1] = changed[i]
  told[#told + 1] = changed[i + 1]
  told[#told + 1] = redis.call('HGET', SAID, changed[i])
end
return { int(now), ids, told }
