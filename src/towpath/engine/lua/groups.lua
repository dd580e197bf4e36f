-- groups: error groups: dead jobs counted by their error, without a scan.
--
-- keys   groups   hash     group -> its error: the first line of a reason, numbers and ids masked
--        group    zset     dead ids of one group by time of death
--        dead     zset     dead ids, with or without a group
-- args   clock    ms       '' = Redis's clock
-- reply  <group, error, how many, first death, last death> of each; <dead>
-- moves  none
-- cost   O(groups), of which there are about a hundred at most
-- full   works
-- uses   keys layout clock more_keys

local found, known = {}, redis.call('HGETALL', GROUPS)
local dead = redis.call('ZCARD', DEAD)
for i = 1, dead > 0 and #known or 0, 2 do
  local key = GROUP .. known[i]
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
  if first[2] then
    found[#found + 1] = { known[i], known[i + 1], redis.call('ZCARD', key), first[2], last[2] }
  end
end
return { found, dead }
