-- turn: whose turn it is to sweep: one has it until its time is over, or it is done.
--
-- keys   turn      string   who has it
--        queued    string   chunks that waited in Redis when somebody swept last
-- args   holder    text     who asks
--        expiry    int      ms
-- reply  <1 = the holder has it, 0 = another has> <chunks>
-- cost   O(1)
-- full   refused

local queued = tonumber(redis.call('GET', QUEUED) or 0)
local before = redis.call('GET', TURN)
if before and before ~= holder then return { 0, queued } end
redis.call('SET', TURN, holder, 'PX', expiry)
return { 1, queued }
