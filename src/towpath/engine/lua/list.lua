-- list: a page of the jobs in one state, of those waiting in one lane, or of those dead of one error.
--
-- keys   queue    zset     ready ids
--        retry    zset     delayed ids
--        waiting  zset     waiting ids of all lanes
--        lane     zset     waiting ids of one lane
--        leases   zset     leased ids
--        dead     zset     dead ids
--        group    zset     dead ids of one error
--        done     zset     done and cancelled ids
--        job      string   the jobs' data
-- args   clock    ms       '' = Redis's clock
--        state    text
--        lane     text     '' = of any lane
--        group    text     '' = of any error
--        after    text     the last id of the page before; '' = from the start
--        score    text     its score there
--        size     int      at most so many, and no more than fit into one answer; at least one
-- reply  <id, score, data> of each, in order; <now>; <1 = there may be more>
-- moves  none
-- cost   O(log n + size)
-- full   works
-- uses   keys layout clock record answer more_keys

local state, lane, group = ARGV[2], ARGV[3], ARGV[4]
local after, score, size = ARGV[5], ARGV[6], tonumber(ARGV[7])
local SETS = {
  ready = QUEUE, delayed = RETRY, waiting = WAITING, leased = LEASES,
  dead = DEAD, done = DONE, cancelled = DONE,
}
local key = lane ~= '' and LANE .. lane or group ~= '' and GROUP .. group or SETS[state]

-- Continue behind the last id of the last page. If that job is no longer there, continue at its
-- score: jobs may be shown twice then, but none is left out.
local from = 0
if after ~= '' then
  local rank = redis.call('ZRANK', key, after)
  from = rank and rank + 1 or redis.call('ZCOUNT', key, '-inf', '(' .. score)
end

local found = redis.call('ZRANGE', key, from, from + size - 1, 'WITHSCORES')
local page, bytes = {}, 0
for i = 1, #found, 2 do
  local record = without_payload(redis.call('GET', JOB .. found[i]) or '')
  bytes = bytes + #record
  if bytes > ANSWER_BYTES and i > 1 then return { page, now, 1 } end
  page[#page + 1] = { found[i], found[i + 1], record }
end
return { page, now, #page == size and 1 or 0 }
