-- follow: have events written for a while, for somebody who follows the queue.
--
-- keys   meta     hash     until when events are wanted, and by which names that is known
--        events   stream   where the follower begins
-- args   clock    ms       '' = the server's
--        wanted   text     all events, or the ends of jobs: watched or awaited
--        lasting  ms       for how long
--        name     text     a new name for the time from now on
-- reply  <name> <newest> <policy> the name of the time for which such events are written without a
--                         gap, '' for a queue that does not exist; the last entry's id, 0-0 = none;
--                         and 'none' where the queue's options refuse followers, else ''
-- moves  none
-- cost   O(1)
-- full   works
-- uses   keys layout clock numbers

local wanted, lasting, name = ARGV[2], tonumber(ARGV[3]), ARGV[4]
local newest = redis.call('XREVRANGE', EVENTS, '+', '-', 'COUNT', 1)[1]
newest = newest and newest[1] or '0-0'
local stored = redis.call('HMGET', META, 'decided', wanted .. '_as')
if not stored[1] then return { '', newest, '' } end

-- A name that is stored without its time, or the other way round, is that of a gap.
local numbers = stored_numbers()
local before = numbers[wanted]
if before ~= 0 and stored[2] then name = stored[2] end
redis.call('UNLINK', KEYS[2])  -- with memory full, the first write must not be one that may grow it
numbers[wanted] = math.max(before, now + lasting)
store_numbers('state', numbers)
redis.call('HSET', META, wanted .. '_as', name)
return { name, newest, cmsgpack.unpack(stored[1]).events == 'none' and 'none' or '' }
