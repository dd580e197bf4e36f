-- configure: write a queue's options, at its first use or in place of others.
--
-- keys   meta     hash     options
-- args   options  bytes    packed
--        mode     text     first = keep those that are there; replace
-- reply  <the options now in force>
-- moves  none
-- cost   O(1)
-- full   refused
-- uses   keys

local packed, mode = ARGV[1], ARGV[2]
local stored = redis.call('HGET', META, 'options')
if stored and mode == 'first' then return stored end
redis.call('HSET', META, 'options', packed)
return packed
