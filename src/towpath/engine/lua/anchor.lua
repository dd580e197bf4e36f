-- anchor: which life of the queue's data this is; and from where on tokens grow.
--
-- keys   meta     hash     born, token
-- args   born     text     a name for this life, where it has none yet
--        floor    text     tokens to come are higher
-- reply  <the name of this life> <the server's run id>
-- moves  none
-- cost   O(1)
-- full   refused
-- uses   keys

local born, floor = ARGV[1], tonumber(ARGV[2])
local stored = redis.call('HMGET', META, 'born', 'token')
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
if not stored[1] then redis.call('HSET', META, 'born', born) end
if tonumber(stored[2] or 0) < floor then
  redis.call('HSET', META, 'token', string.format('%d', floor))
end
return { stored[1] or born, run or '' }
