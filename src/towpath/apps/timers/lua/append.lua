-- append: firings at the end of a type's log, and away with what is too old or too much.
--
-- keys   log      stream   one entry per firing
--        bytes    string   how many bytes the entries have
-- args   entries  list     of each firing its bytes
--        log_age  int      how long one stays, ms
--        log_entries int   how many stay
--        log_bytes int     how many bytes stay
--        limit    int      at most so many are deleted now
-- reply  <entries that are left>
-- cost   O(entries + deleted)
-- full   refused
-- uses   clock

local OVERHEAD = 32
local last = redis.call('XREVRANGE', LOG, '+', '-', 'COUNT', 1)[1]
local ms, seq = 0, 0
if last then
  ms, seq = string.match(last[1], '(%d+)-(%d+)')
  ms, seq = tonumber(ms), tonumber(seq)
end

-- Read before the first write: the oldest, as many as may have to go.
local oldest = redis.call('XRANGE', LOG, '-', '+', 'COUNT', limit)
local count = redis.call('XLEN', LOG) + #entries
local size = tonumber(redis.call('GET', BYTES) or 0)
for _, entry in ipairs(entries) do size = size + #entry + OVERHEAD end
local gone = {}
for _, entry in ipairs(oldest) do
  local at = tonumber(string.match(entry[1], '%d+'))
  if not (at < now - log_age or count > log_entries or size > log_bytes) then break end
  gone[#gone + 1] = entry[1]
  count, size = count - 1, size - #entry[2][2] - OVERHEAD
end

for i = 1, #gone do redis.call('XDEL', LOG, gone[i]) end
for _, entry in ipairs(entries) do
  -- In order, also where the clock was set back.
  if now > ms then ms, seq = now, 0 else seq = seq + 1 end
  redis.call('XADD', LOG, int(ms) .. '-' .. int(seq), 'f', entry)
end
redis.call('SET', BYTES, int(math.max(size, 0)))
return count
