-- firings: read a page of a type's log, latest first.
--
-- keys   log      stream   one entry per firing
-- args   since    int      from this time on, ms
--        upto     text     up to this entry or time; '(' before it = without it; '+' = the latest
--        log_age  int      how long an entry stays, ms
--        size     int      at most so many
-- reply  <id, firing> of each
-- cost   O(size)
-- full   works
-- uses   clock

local page = {}
local from = int(math.max(since, now - log_age, 0))
for _, entry in ipairs(redis.call('XREVRANGE', LOG, upto, from, 'COUNT', size)) do
  page[#page + 1] = { entry[1], entry[2][2] }
end
return page
