-- take_turn: gives one server the turn to sweep, and renews it, until it expires.
--
-- keys   turn      string   the server that has it
--        queued    string   chunks that waited in Redis at the last sweep
-- args   holder    text     the server that asks
--        expiry    int      ms
-- stored turn              its calls are remembered under this name, as in earlier releases
-- reply  <1 = the holder has the turn, 0 = another server has it> <chunks>
-- cost   O(1)
-- full   refused

local queued = tonumber(redis.call('GET', QUEUED) or 0)
local before = redis.call('GET', TURN)
if before and before ~= holder then return { 0, queued } end
redis.call('SET', TURN, holder, 'PX', expiry)
return { 1, queued }
