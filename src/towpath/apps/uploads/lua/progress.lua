-- progress: the first missing chunk of an upload.
--
-- keys   state     hash     the published fields, and those of the plan
--        received  string   a bit per chunk that is in Redis or stored
-- args   none
-- reply  <status> <generation> <first missing chunk> <size, if known> <last activity, ms>
--        nothing
-- cost   O(chunks / 8)
-- full   works

local names = { 'status', 'generation', 'sized', 'expected_size', 'updated_at' }
local values = redis.call('HMGET', STATE, unpack(names))
if not values[1] then return nil end
local size = values[3] == '1' and values[4] or ''
return { values[1], values[2], redis.call('BITPOS', RECEIVED, 0), size, values[5] }
