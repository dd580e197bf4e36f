-- place: moves staged bytes to their chunks, and deletes incomplete copies of these chunks. All
-- placed chunks of the upload get the same expiry.
--
-- keys   staging:  string   by staging token: bytes of a chunk that are not placed yet
--        chunks:   string   by number: the bytes of a chunk
--        held      hash     chunk -> the staging token of its bytes
--        renewed   string   when the expiry of all chunks was last renewed, ms
-- args   items     list     chunk, staging token, …
--        generation int     of the upload; the tokens of incomplete chunks have it
--        expiry    int      ms
-- reply  <chunks whose bytes are gone, …> <chunks whose expiry was renewed, …>
-- cost   O(chunks); now and then O(chunks held)
-- full   works
-- uses   clock

local gone, placed = {}, false
for i = 1, #items, 2 do
  local number, token = items[i], items[i + 1]
  if redis.call('EXISTS', STAGING .. token) == 1 then
    redis.call('RENAME', STAGING .. token, CHUNKS .. number)
    redis.call('HSET', HELD, number, token)
    redis.call('PEXPIRE', CHUNKS .. number, expiry)
    placed = true
  elseif redis.call('HGET', HELD, number) ~= token
      or redis.call('EXISTS', CHUNKS .. number) == 0 then
    gone[#gone + 1] = number
  end
  local tail = 'tail-' .. int(generation) .. '-' .. number
  if tail ~= token then redis.call('UNLINK', STAGING .. tail) end
end
if not placed then return { gone, {} } end

redis.call('PEXPIRE', HELD, expiry)
local last = tonumber(redis.call('GET', RENEWED) or 0)
if now - last < expiry / 60 then return { gone, {} } end
redis.call('SET', RENEWED, int(now), 'PX', expiry)
if last == 0 then return { gone, {} } end
local numbers = redis.call('HKEYS', HELD)
for _, other in ipairs(numbers) do redis.call('PEXPIRE', CHUNKS .. other, expiry) end
return { gone, numbers }
