-- admit: what is known of chunks that a client wants to send.
--
-- keys   state     hash     the published fields, and those of the plan
--        received  string   a bit per chunk that is in Redis or stored
--        digests   hash     chunk -> its CRC-64/NVME
-- args   number    int      the first of them
--        count     int      how many
-- reply  <status> <generation> <size, if known> <of each chunk: whether it is here, its digest>
--        nothing
-- cost   O(chunks)
-- full   works

local values = redis.call('HMGET', STATE, 'status', 'generation', 'sized', 'expected_size')
if not values[1] then return nil end
local size = values[3] == '1' and values[4] or ''
local known = {}
for at = number, number + count - 1 do
  known[#known + 1] = redis.call('GETBIT', RECEIVED, at)
  known[#known + 1] = redis.call('HGET', DIGESTS, at) or ''
end
return { values[1], values[2], size, known }
