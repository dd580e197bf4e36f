-- listing: all types, the owners of types without an app, and how many serve each type.
--
-- keys   types    hash     key of a type -> its queue
--        used     zset     keys by when they were last used, ms
--        owners   hash     type that is used without an app -> plugin, app:<name>, '' = nobody yet
--        alive:   zset     by queue: who serves it, by the time until they are alive, ms
-- args   none
-- reply  <now>; <key, queue, last used, how many are alive, the last time that one was> of each;
--        <type, owner, …>
-- cost   O(types log n)
-- full   works
-- uses   clock

local found = redis.call('HGETALL', TYPES)
local page = {}
for i = 1, #found, 2 do
  local queue = found[i + 1]
  local alive = redis.call('ZCOUNT', ALIVE .. queue, '(' .. int(now), '+inf')
  local last = redis.call('ZREVRANGE', ALIVE .. queue, 0, 0, 'WITHSCORES')[2] or '0'
  local used = redis.call('ZSCORE', USED, found[i]) or '0'
  page[#page + 1] = { found[i], queue, used, alive, last }
end
return { now, page, redis.call('HGETALL', OWNERS) }
