-- configure: write a queue's options, at its first use or in place of others.
--
-- keys   meta     hash     options, their version, and what was declared last
-- args   whole    text     the decided options, as engines read them
--        options  bytes    packed: those the scripts go by
--        version  text     tells options apart
--        over     text     which ones they replace: a version, or none
--        declared text     what was declared of them, option by option; '' = as before
-- reply  <the options now in force> <their version> <what is declared of them>
-- moves  none
-- cost   O(1)
-- full   refused
-- uses   keys

local whole, packed, version, over, declared = unpack(ARGV)
local stored = redis.call('HMGET', META, 'whole', 'version', 'declared')
local last = stored[3] or ''
if stored[1] and over ~= stored[2] then return { stored[1], stored[2], last } end
if not stored[1] then redis.call('HSET', META, 'watched', -1) end  -- see `publish`
redis.call('HSET', META, 'whole', whole, 'options', packed, 'version', version)
if declared == '' then return { whole, version, last } end
redis.call('HSET', META, 'declared', declared)
return { whole, version, declared }
