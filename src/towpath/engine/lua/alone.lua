-- alone: how many leased jobs have no job waiting behind them in their lane.
--
-- keys   leases   zset     leased ids by expiry, ms
--        job      string   the jobs' data
--        lane     zset     ids behind the holder
-- args   clock    ms       '' = Redis's clock
--        limit    int      look at so many leased jobs at most
-- reply  <alone> <looked at>
-- moves  none
-- cost   O(limit)
-- full   works
-- uses   keys layout clock record

local ids = redis.call('ZRANGEBYSCORE', LEASES, '(' .. string.format('%.0f', now), '+inf',
  'LIMIT', 0, tonumber(ARGV[2]))
local alone = 0
for _, id in ipairs(ids) do
  local text = redis.call('GET', JOB .. id)
  local lane = text and decode(id, text).lane
  if lane and redis.call('ZCARD', LANE .. lane) == 0 then alone = alone + 1 end
end
return { alone, #ids }
