-- lose: notes that chunks whose bytes are gone are missing. Clients must send the same bytes again.
--
-- keys   state     hash     the published fields, and those of the plan
--        received  string   a bit per chunk that is in Redis or stored
--        pending   hash     chunk -> its staging token, until its part is stored
--        fill      hash     part -> how many of its chunks were received, until it is stored
--        turns     hash     part -> its turn: how often it lost chunks
-- args   generation int     that the caller has read
--        items     list     chunk, token, …
-- reply  <how many are missing again>
-- cost   O(chunks)
-- full   works
-- uses   upload

if upload.generation ~= generation then return 0 end
local gone, has_new_turn = 0, {}
for i = 1, #items, 2 do
  local number = items[i]
  if redis.call('HGET', PENDING, number) == items[i + 1] then
    local part = math.floor(number / upload.per_part)
    redis.call('HDEL', PENDING, number)
    redis.call('SETBIT', RECEIVED, number, 0)
    if redis.call('HINCRBY', FILL, part, -1) <= 0 then redis.call('HDEL', FILL, part) end
    if not has_new_turn[part] then redis.call('HINCRBY', TURNS, part, 1) end
    has_new_turn[part] = true
    gone = gone + 1
  end
end
if gone > 0 then
  redis.call('HINCRBY', STATE, 'received_chunks', -gone)
  redis.call('PEXPIRE', TURNS, redis.call('PTTL', STATE))
end
return gone
