-- lanes_without_backlog: how many lanes have a leased job and no job waiting behind it.
--
-- keys   leases   zset     leased ids by expiry, ms
--        job      string   the jobs' data
--        lane     zset     ids behind the holder
-- args   clock    ms       '' = Redis's clock
--        limit    int      how many leased jobs are read at most
-- reply  <lanes> <leased jobs that were read>
-- moves  none
-- cost   O(limit)
-- full   works
-- uses   keys layout clock record

local ids = redis.call('ZRANGEBYSCORE', LEASES, '(' .. string.format('%.0f', now), '+inf',
  'LIMIT', 0, tonumber(ARGV[2]))
local lanes = 0
for _, id in ipairs(ids) do
  local text = redis.call('GET', JOB .. id)
  local lane = text and decode(id, text).lane
  if lane and redis.call('ZCARD', LANE .. lane) == 0 then lanes = lanes + 1 end
end
return { lanes, #ids }
