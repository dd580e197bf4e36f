-- append: add firings to the log of a type, and delete entries beyond the limits.
--
-- keys   log      stream   one entry per firing
--        bytes    string   how many bytes the entries have
-- args   entries  list     the firings, each as bytes
--        log_age  int      how long an entry is kept, ms
--        log_entries int   how many entries are kept
--        log_bytes int     how many bytes are kept
--        limit    int      how many entries are deleted at most
-- reply  <number of entries>
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

-- Read before the first write: the oldest entries, as many as may have to be deleted.
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
  -- Ids must grow, even if the clock was set back.
  if now > ms then ms, seq = now, 0 else seq = seq + 1 end
  redis.call('XADD', LOG, int(ms) .. '-' .. int(seq), 'f', entry)
end
redis.call('SET', BYTES, int(math.max(size, 0)))
return count
