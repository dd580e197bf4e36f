-- place: staged bytes become the chunk's. Those of the other chunks stay for as long as these.
--
-- keys   staging:  string   by token: what has come of a chunk
--        chunks:   string   by number: the bytes of a chunk
--        held      hash     chunk -> the token its bytes came under
--        renewed   string   when all of them were last given their time, ms
-- args   number    int      which chunk
--        token     text     of the one who sent it
--        expiry    int      ms
-- reply  placed <chunks whose time was renewed, …>
--        CHUNK_GONE
-- cost   O(1); now and then O(chunks held)
-- full   works
-- uses   clock

if redis.call('EXISTS', STAGING .. token) == 0 then
  local there = redis.call('HGET', HELD, number) == token
  return { there and 'placed' or 'CHUNK_GONE', {} }
end

redis.call('RENAME', STAGING .. token, CHUNKS .. number)
redis.call('HSET', HELD, number, token)
redis.call('PEXPIRE', CHUNKS .. number, expiry)
redis.call('PEXPIRE', HELD, expiry)
local last = tonumber(redis.call('GET', RENEWED) or 0)
if now - last < expiry / 60 then return { 'placed', {} } end
redis.call('SET', RENEWED, int(now), 'PX', expiry)
if last == 0 then return { 'placed', {} } end
local numbers = redis.call('HKEYS', HELD)
for _, other in ipairs(numbers) do redis.call('PEXPIRE', CHUNKS .. other, expiry) end
return { 'placed', numbers }
