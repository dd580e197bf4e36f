-- front: how far an upload has come without a gap.
--
-- keys   state     hash     the document's fields, and those of the plan
--        received  string   a bit per chunk that is here or in the store
-- args   none
-- reply  <status> <generation> <first chunk that is missing> <size, if it is known> <updated, ms>
--        nothing
-- cost   O(chunks / 8)
-- full   works

local names = { 'status', 'generation', 'sized', 'expected_size', 'updated_at' }
local values = redis.call('HMGET', STATE, unpack(names))
if not values[1] then return nil end
local size = values[3] == '1' and values[4] or ''
return { values[1], values[2], redis.call('BITPOS', RECEIVED, 0), size, values[5] }
