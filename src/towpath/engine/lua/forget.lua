-- forget: remove what is known of a recurring work that is no longer wanted.
--
-- keys   recurring hash    name -> its last firing and its schedule
-- args   name     text
-- reply  forgotten
--        RECURRENCE_NOT_FOUND
-- moves  none
-- cost   O(1)
-- full   works
-- uses   keys clock calls meta
-- runs   forget(unpack(cmsgpack.unpack(ARGV[4])))

local function forget(name)
  if remembered then return remembered end
  local stored = redis.call('HGET', RECURRING, name)
  local answer = stored and 'forgotten' or { 'RECURRENCE_NOT_FOUND' }
  redis.call('HDEL', RECURRING, name)  -- also if it is not there: a first write that can't grow
  remember(answer)
  return answer
end
