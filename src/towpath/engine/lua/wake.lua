-- wake: wake one waiter for jobs of a selector.
--
-- keys   wakes    list     at most one wake-up
-- args   selector text
-- reply  called
-- moves  none
-- cost   O(1)
-- full   refused
-- uses   keys layout more_keys

local key = WAKES .. ARGV[1]
if redis.call('LLEN', key) == 0 then
  redis.call('RPUSH', key, '1')
  redis.call('PEXPIRE', key, 10000)
end
return 'called'
