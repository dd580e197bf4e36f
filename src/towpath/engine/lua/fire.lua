-- fire: submit the jobs of a schedule's next firings, once, however many processes call this.
--
-- keys   recurring hash    name -> its last firing in ms, and its schedule in words
--        schedules hash    name -> version and definition of a stored schedule
--        loads    hash     name -> the payload of its jobs
--        queue    zset     ready ids, if they can run now
--        retry    zset     delayed ids by due time, if they can't yet
--        waiting  zset     ids behind the head of their lane
--        lane     zset     the same, one lane
--        lanes    hash     lane -> its holder
--        job      string   the jobs' data
--        load     string   the payloads that are large
--        seen     zset     ids that callers chose and that are gone
-- args   name     text
--        after    ms       the last firing that the caller knows of; 0 = none
--        upto     ms       the last firing from now on; 0 = leave it as it is
--        about    text     the schedule in words
--        jobs     list     of {id, payload, more} as submit takes them; may be empty
--        version  text     of the stored schedule, whose payload the jobs get; '' = code declares it
-- reply  <answers in order>
--        SCHEDULE_CHANGED <version>
--        FIRING_TAKEN <last>
--        NOT_YET <now>
--        QUEUE_FULL <length>
--        PAYLOAD_TOO_LARGE <size> <limit>
-- moves  new -> ready, new -> delayed, new -> waiting
-- cost   O(jobs · log n)
-- full   refused
-- uses   keys clock calls meta record notify send sets remembered accept waits history_rows submit planned
-- runs   fire(unpack(cmsgpack.unpack(ARGV[4])))

local function refuse(answer)
  remember(answer)
  return answer
end

-- All of the jobs or none: a firing that finds no room stays due.
local function refusal()
  for _, answer in ipairs(answers) do
    if type(answer) == 'table' and answer[1] ~= 'existed' then return answer end
  end
end

local function fire(name, after, upto, about, jobs, version)
  if remembered then return remembered end
  local kept, last, words = version_of(name), last_firing(name)
  if kept ~= version then return refuse({ 'SCHEDULE_CHANGED', kept }) end
  if upto > 0 and last ~= after then return refuse({ 'FIRING_TAKEN', last }) end
  if upto > now then return refuse({ 'NOT_YET', now }) end
  items = jobs
  if #items > 0 then
    local payload = version ~= '' and redis.call('HGET', LOADS, name)
    for i = 1, payload and #items or 0 do items[i][2] = payload end
    read_stored()
  end
  local fresh = answer_all()
  local why_not = refusal()
  if why_not then return refuse(why_not) end

  write(fresh)
  -- Last, because all that may fail about the jobs was checked just before their first write.
  local still = #items == 0 and unfired(words) or ''
  if upto > 0 then redis.call('HSET', RECURRING, name, int(upto) .. ' ' .. about .. still) end
  return answers
end
