-- anchor: which life of the queue's data this is; and from where on tokens grow.
--
-- keys   meta     hash     born, token
-- args   clock    ms       '' = the server's
--        born     text     a name for this life, where it has none yet
--        floor    text     tokens to come are higher; they rise only if they would not be
-- reply  <the name of this life> <the server's run id>
-- moves  none
-- cost   O(1)
-- full   refused
-- uses   keys clock

local AHEAD_US = 60000000  -- leases that were lost had higher tokens than anybody knows
local born, floor = ARGV[2], tonumber(ARGV[3])
local stored = redis.call('HMGET', META, 'born', 'token')
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
if not stored[1] then redis.call('HSET', META, 'born', born) end
-- Where the last token is the floor itself, nothing was lost: the next one is higher.
if math.max(tonumber(stored[2] or 0) + 1, now_us) <= floor then
  redis.call('HSET', META, 'token', int(floor + AHEAD_US))
end
return { stored[1] or born, run or '' }
