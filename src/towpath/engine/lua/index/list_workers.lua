-- list_workers: the workers that are alive, by name, with their reports.
--
-- keys   living   zset     workers by the moment until which they count as alive, ms
--        told     hash     worker -> when its process began, ms, and its report
-- args   most     int      so many of them
-- reply  <worker, report, ...>
-- stored living           the name under which its calls are remembered, as by earlier releases
-- cost   O(most + log n)
-- full   works
-- uses   clock

local found = {}
local names = redis.call('ZRANGEBYSCORE', LIVING, '(' .. int(now), '+inf', 'LIMIT', 0, most)
local reports = #names > 0 and redis.call('HMGET', TOLD, unpack(names)) or {}
for i, name in ipairs(names) do
  found[#found + 1] = name
  found[#found + 1] = reports[i] or ''
end
return found
