-- incarnation: the name of this incarnation of the queue's data; and a floor above which tokens grow.
--
-- keys   meta     hash     born, token
-- args   clock    ms       '' = Redis's clock
--        born     text     a name for this incarnation, if it has none yet
--        floor    text     later tokens are higher; they are raised only if they would not be
-- reply  <the name of this incarnation> <the run id of Redis>
-- moves  none
-- cost   O(1)
-- full   refused
-- uses   keys layout clock numbers

local AHEAD_US = 60000000  -- leases that Redis lost may have had higher tokens than the highest known one
local born, floor = ARGV[2], tonumber(ARGV[3])
local stored, numbers = redis.call('HGET', META, 'born'), stored_numbers()
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
if not stored then redis.call('HSET', META, 'born', born) end
-- If the last token is the floor itself, nothing was lost, and the next one is higher.
if math.max(numbers.token + 1, now_us) <= floor then
  numbers.token = floor + AHEAD_US
  store_numbers('out', numbers)
end
return { stored or born, run or '' }
