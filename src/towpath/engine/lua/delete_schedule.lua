-- delete_schedule: delete a schedule that was made at run time; its jobs stay.
--
-- keys   schedules hash    name -> its version and definition
--        loads    hash     name -> the payload of its jobs
--        recurring hash    name -> its last firing in ms, and its schedule in words
--        meta     hash     the version of the last change
-- args   name     text
--        over     text     the version to delete
--        version  text     of this change
-- stored unschedule        the name under which its calls are remembered, as by earlier releases
-- reply  deleted <how many are left>
--        SCHEDULE_CHANGED <version>
-- moves  none
-- cost   O(1)
-- full   works
-- uses   keys clock calls meta planned
-- runs   delete_schedule(unpack(cmsgpack.unpack(ARGV[4])))

local function delete_schedule(name, over, version)
  if remembered then return remembered end
  local kept, left = version_of(name), redis.call('HLEN', SCHEDULES) - 1
  redis.call('HLEN', LOADS)
  redis.call('HLEN', RECURRING)
  if kept ~= over then
    local answer = { 'SCHEDULE_CHANGED', kept }
    redis.call('HDEL', SCHEDULES, '')  -- no schedule has an empty name: a first write that needs no memory
    remember(answer)
    return answer
  end

  redis.call('HDEL', SCHEDULES, name)
  redis.call('HDEL', LOADS, name)
  redis.call('HDEL', RECURRING, name)
  redis.call('HSET', META, 'schedules', version)
  local answer = { 'deleted', left }
  remember(answer)
  return answer
end
