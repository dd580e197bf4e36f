-- admit: what is known of a chunk that somebody wants to send.
--
-- keys   state     hash     the document's fields, and those of the plan
--        received  string   a bit per chunk that is here or in the store
--        digests   hash     chunk -> its CRC-64/NVME
-- args   number    int      which chunk
-- reply  <status> <whether it is here> <its digest> <generation> <size, if it is known>
--        nothing
-- cost   O(1)
-- full   works

local values = redis.call('HMGET', STATE, 'status', 'generation', 'sized', 'expected_size')
if not values[1] then return nil end
local size = values[3] == '1' and values[4] or ''
local digest = redis.call('HGET', DIGESTS, number) or ''
return { values[1], redis.call('GETBIT', RECEIVED, number), digest, values[2], size }
