-- delete_declared: delete what is known of a schedule that code declared; its jobs stay.
--
-- keys   recurring hash    name -> its last firing and its schedule
-- args   name     text
-- stored forget            under this name its calls are remembered, as by releases before
-- reply  deleted
--        SCHEDULE_NOT_FOUND
-- moves  none
-- cost   O(1)
-- full   works
-- uses   keys clock calls meta
-- runs   delete_declared(unpack(cmsgpack.unpack(ARGV[4])))

local function delete_declared(name)
  if remembered then return remembered end
  local stored = redis.call('HGET', RECURRING, name)
  local answer = stored and 'deleted' or { 'SCHEDULE_NOT_FOUND' }
  redis.call('HDEL', RECURRING, name)  -- also if it is not there: a first write that can't grow
  remember(answer)
  return answer
end
