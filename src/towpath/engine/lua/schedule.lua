-- schedule: store a schedule that is created at run time, or replace a stored one.
--
-- keys   schedules hash    name -> its version and definition
--        loads    hash     name -> the payload of its jobs
--        recurring hash    name -> its last firing in ms, and its schedule in words
--        meta     hash     the version of the last change
-- args   name     text
--        over     text     the version that it replaces; '' = it is new
--        version  text     the version of this definition
--        about    text     the schedule in words
--        plan     text     the definition, as engines read it
--        payload  bytes    the payload of its jobs
--        anew     int      1 = it continues from now; 0 = from its last firing
--        most     int      so many may be stored in the queue
-- reply  made <how many are stored>
--        replaced <how many are stored>
--        SCHEDULE_CHANGED <version>
--        SCHEDULE_DECLARED
--        SCHEDULES_FULL <limit>
-- moves  none
-- cost   O(1)
-- full   refused
-- uses   keys clock calls meta planned
-- runs   schedule(unpack(cmsgpack.unpack(ARGV[4])))

local function refusal(name, over, words, count, most)
  local kept = version_of(name)
  if kept ~= over then return { 'SCHEDULE_CHANGED', kept } end
  if over ~= '' then return end
  if words ~= '' then return { 'SCHEDULE_DECLARED' } end
  if count >= most then return { 'SCHEDULES_FULL', most } end
end

local function schedule(name, over, version, about, plan, payload, anew, most)
  if remembered then return remembered end
  local count, last, words = redis.call('HLEN', SCHEDULES), last_firing(name)
  local answer = refusal(name, over, words, count, most)
  redis.call('HLEN', LOADS)  -- all that can fail comes before the first write
  if not answer then
    local still = (words == '' or anew == 1) and unfired(words)
      or string.match(words, ', not fired yet$') or string.match(words, ', fired for %d+$') or ''
    local at = (words == '' or anew == 1) and now or last
    redis.call('HSET', LOADS, name, payload)
    redis.call('HSET', SCHEDULES, name, version .. ' ' .. plan)
    redis.call('HSET', RECURRING, name, int(at) .. ' ' .. about .. still)
    redis.call('HSET', META, 'schedules', version)
    answer = over == '' and { 'made', count + 1 } or { 'replaced', count }
  end
  remember(answer)
  return answer
end
