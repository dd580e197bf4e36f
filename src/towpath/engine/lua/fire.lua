-- fire: take in the jobs of a recurring work's next firings, once, whoever comes first.
--
-- keys   recurring hash    name -> its last firing in ms, and its schedule in words
--        queue    zset     ready ids, if they can run now
--        retry    zset     delayed ids by due time, if they can't yet
--        waiting  zset     ids behind the head of their lane
--        lane     zset     the same, one lane
--        lanes    hash     lane -> its holder
--        job      string   the records
--        load     string   the payloads
--        seen     zset     ids that callers chose and that are gone
-- args   name     text
--        after    ms       the last firing that the caller knows of; 0 = it was never seen
--        upto     ms       the last firing from now on
--        about    text     the schedule, for people
--        jobs     list     of {id, load, more} as submit takes them; may be empty
-- reply  <answers in order>
--        FIRING_TAKEN <last>
--        NOT_YET <now>
--        QUEUE_FULL <length>
--        PAYLOAD_TOO_LARGE <size> <limit>
-- moves  new -> ready, new -> delayed, new -> waiting
-- cost   O(jobs · log n)
-- full   refused
-- uses   keys clock calls meta record tell send sets known accept waits submit
-- runs   fire(unpack(cmsgpack.unpack(ARGV[4])))

local function refuse(answer)
  remember(answer)
  return answer
end

local function last_firing(name)
  local stored = redis.call('HGET', RECURRING, name)
  return stored and tonumber(string.match(stored, '^%d+')) or 0
end

-- All of the jobs or none: a firing that finds no room stays due.
local function refusal()
  for _, answer in ipairs(answers) do
    if type(answer) == 'table' and answer[1] ~= 'existed' then return answer end
  end
end

local function fire(name, after, upto, about, batch)
  if remembered then return remembered end
  local last = last_firing(name)
  if last ~= after then return refuse({ 'FIRING_TAKEN', last }) end
  if upto > now then return refuse({ 'NOT_YET', now }) end
  items = batch
  if #items > 0 then read_stored() end
  local fresh = answer_all()
  local why_not = refusal()
  if why_not then return refuse(why_not) end

  write(fresh)
  -- Last, because what may fail about the jobs was asked just before their first write.
  redis.call('HSET', RECURRING, name, int(upto) .. ' ' .. about)
  return answers
end
