-- lose: chunks whose bytes are gone are missing again. They must come again as they were.
--
-- keys   state     hash     the document's fields, and those of the plan
--        received  string   a bit per chunk that is here or in the store
--        pending   hash     chunk -> the token its bytes came under, until its part is stored
--        fill      hash     part -> how many of its chunks are here
--        turns     hash     part -> how often it was begun anew
-- args   generation int     that the caller looked at
--        items     list     chunk, token, …
-- reply  <how many are missing again>
-- cost   O(chunks)
-- full   works
-- uses   upload

if upload.generation ~= generation then return 0 end
local gone, begun_anew = 0, {}
for i = 1, #items, 2 do
  local number = items[i]
  if redis.call('HGET', PENDING, number) == items[i + 1] then
    local part = math.floor(number / upload.per_part)
    redis.call('HDEL', PENDING, number)
    redis.call('SETBIT', RECEIVED, number, 0)
    if redis.call('HINCRBY', FILL, part, -1) <= 0 then redis.call('HDEL', FILL, part) end
    if not begun_anew[part] then redis.call('HINCRBY', TURNS, part, 1) end
    begun_anew[part] = true
    gone = gone + 1
  end
end
if gone > 0 then
  redis.call('HINCRBY', STATE, 'received_chunks', -gone)
  redis.call('PEXPIRE', TURNS, redis.call('PTTL', STATE))
end
return gone
