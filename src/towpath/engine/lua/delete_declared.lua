-- delete_declared: delete the last firing of a schedule that code declared; its jobs stay.
--
-- keys   recurring hash    name -> its last firing and its schedule
-- args   name     text
-- stored forget            the name under which its calls are remembered, as by earlier releases
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
  redis.call('HDEL', RECURRING, name)  -- also if there is none: a first write that needs no memory
  remember(answer)
  return answer
end
