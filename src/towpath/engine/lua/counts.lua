-- counts: how many jobs are in each state, and the queue's totals, without a scan.
--
-- keys   queue    zset     ready ids
--        retry    zset     delayed ids
--        waiting  zset     waiting ids
--        leases   zset     leased ids, and how many of the leases have not ended
--        dead     zset     dead ids
--        done     zset     kept ids
--        seen     zset     remembered ids
--        lanes    hash     lanes with a holder
--        meta     hash     totals, last claim
--        asked    zset     when selectors were last asked for
--        job      string   the oldest ready job of each priority
-- args   clock    ms       '' = Redis's clock
-- reply  <facts>
-- moves  none
-- cost   O(priorities in use · log n)
-- full   works
-- uses   keys layout clock oldest more_keys numbers

local later = '(' .. int(now)
local facts = {
  'now', now,
  'ready', redis.call('ZCARD', QUEUE), 'delayed', redis.call('ZCARD', RETRY),
  'waiting', redis.call('ZCARD', WAITING), 'leased', redis.call('ZCARD', LEASES),
  'dead', redis.call('ZCARD', DEAD), 'kept', redis.call('ZCOUNT', DONE, later, '+inf'),
  'seen', redis.call('ZCOUNT', SEEN, later, '+inf'), 'lanes', redis.call('HLEN', LANES),
  'oldest_at', oldest_ready() or 0, 'lasting', redis.call('ZCOUNT', LEASES, later, '+inf'),
  'asked_for', redis.call('ZRANGE', ASKED, -1, -1, 'WITHSCORES')[2] or 0,
}
for name, number in pairs(stored_numbers()) do
  facts[#facts + 1] = name
  facts[#facts + 1] = number
end
return facts
