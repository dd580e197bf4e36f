-- configure: write a queue's options, at its first use or in place of others.
--
-- keys   meta     hash     options and their version
-- args   whole    text     all options, as engines read them
--        options  bytes    packed: those the scripts go by
--        version  text     tells options apart
--        over     text     which ones they replace: a version, none, or any
-- reply  <the options now in force>
-- moves  none
-- cost   O(1)
-- full   refused
-- uses   keys

local whole, packed, version, over = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local stored = redis.call('HMGET', META, 'whole', 'version')
if stored[1] and over ~= 'any' and over ~= stored[2] then return stored end
redis.call('HSET', META, 'whole', whole, 'options', packed, 'version', version)
return { whole, version }
