-- submit: add a job to the queue, once per id.
--
-- keys   queue    zset     ready ids, if it can run now
--        retry    zset     delayed ids by due time, if it can't yet
--        waiting  zset     ids behind the head of their lane
--        lane     zset     the same, one lane
--        lanes    hash     lane -> its holder
--        job      string   the job's data
--        load     string   the payload, if it is large
--        seen     zset     ids that callers chose and that are gone
-- args   id       text
--        payload  bytes
--        more     map      what is not plain: the fields of JobOptions; named = a caller chose the id
-- reply  ready
--        delayed
--        waiting
--        existed <state> <same | differs | unknown>
--        QUEUE_FULL <length>
--        PAYLOAD_TOO_LARGE <size> <limit>
-- moves  new -> ready, new -> delayed, new -> waiting
-- cost   O(log n)
-- full   refused
-- short  lone_submit plain_submit
-- uses   keys clock calls meta record notify send sets remembered accept waits history_rows
-- runs   submit(request)

local leftovers = {}  -- keys of ended jobs whose ids begin again

local function outlive(id, payload)
  outlived[#outlived + 1] = id
  leftovers[#leftovers + 1] = RESULT .. id
  if #payload <= SMALL then leftovers[#leftovers + 1] = LOAD .. id end
end

local function answer_all()
  local room = room_left()
  local fresh = {}
  for i = 1, #items do
    local id, payload, more = items[i][1], items[i][2], items[i][3]
    local answer = known(id, payload, more and more.named)
    if not answer and room <= 0 then answer = { 'QUEUE_FULL', options.max_length } end
    if #payload > options.max_payload then answer = { 'PAYLOAD_TOO_LARGE', #payload, options.max_payload } end
    if not answer then
      answer = accept(id, payload, more)
      room = room - 1
      fresh[#fresh + 1] = id
      if stored[id] then outlive(id, payload) end
      place[id] = i
    end
    answers[i] = answer
  end
  return fresh
end

-- All that can fail comes before the first write: each set is read, which fails if its key has
-- another type. MSET writes all or nothing.
local function write(fresh)
  for _, id in ipairs(outlived) do zrem(DONE, id) end
  local wake = plan_wakeups()
  if #fresh > 0 then read_history() end
  check_sets()
  if #taken > 0 then redis.call('HLEN', LANES) end

  send('MSET', puts)
  write_removals()
  write_additions()
  send('HSET', taken, LANES)
  send('UNLINK', leftovers)
  write_history()
  set_meta('submitted', meta.submitted + #fresh)
  write_meta()
  if #fresh > 0 then
    notes.submit, noted[1] = fresh, 'submit'
  end
  notify(wake)
  remember(answers)
end

local function submit(batch)
  if remembered then return remembered end
  items = batch
  read_stored()
  write(answer_all())
  return answers
end
