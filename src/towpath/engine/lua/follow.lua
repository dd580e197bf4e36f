-- follow: have events written for some time, for a follower of the queue.
--
-- keys   meta     hash     until when events are wanted, and the names of these times
--        events   stream   where the follower begins
-- args   clock    ms       '' = Redis's clock
--        wanted   text     watched = all events, awaited = the ends of jobs
--        lasting  ms       for how long
--        name     text     a name for the time from now on, if a new one begins
-- reply  <name> <newest> <policy> the name of the time for which such events are written without a
--                         gap, '' if the queue does not exist; the id of the last entry, 0-0 = none;
--                         and 'none' if the queue's options refuse followers, else ''
-- moves  none
-- cost   O(1)
-- full   works
-- uses   keys layout clock numbers

local wanted, lasting, name = ARGV[2], tonumber(ARGV[3]), ARGV[4]
local newest = redis.call('XREVRANGE', EVENTS, '+', '-', 'COUNT', 1)[1]
newest = newest and newest[1] or '0-0'
local stored = redis.call('HMGET', META, 'decided', wanted .. '_as')
if not stored[1] then return { '', newest, '' } end

-- If only one of the two is stored, the name or its time, there was a gap: a new name begins.
local numbers = stored_numbers()
local before = numbers[wanted]
if before ~= 0 and stored[2] then name = stored[2] end
redis.call('UNLINK', KEYS[2])  -- with memory full, the first write must not need memory
numbers[wanted] = math.max(before, now + lasting)
store_numbers('state', numbers)
redis.call('HSET', META, wanted .. '_as', name)
return { name, newest, cmsgpack.unpack(stored[1]).events == 'none' and 'none' or '' }
