-- plain_submit: the short way of a submit, for plain jobs with new ids. For any other call this
-- changes nothing, and `submit` starts again.
--
-- uses   keys clock calls request queue head publish

-- Lists begin with room for one job: to grow them costs more than to fill them.
local items, names, place, large = request, { '' }, {}, {}
local plain = #items > 0 and options.max_length == 0 and now - meta.minute < MINUTE_MS
  and meta.tick + #items - now < AHEAD_MOST
for i = 1, plain and #items or 0 do
  local id, payload, more = items[i][1], items[i][2], items[i][3]
  plain = not (more or place[id] or #payload > options.max_payload)
  if not plain then break end
  names[i], place[id] = JOB .. id, i
end
if plain then
  local texts = redis.call('MGET', unpack(names))
  for i = 1, #items do plain = plain and not texts[i] end
end

if plain then
  local tick = math.max(now, meta.tick + 1) - 1
  local scores, puts, fresh, answers = { 0, '' }, { '', '' }, { '' }, { '' }
  for i = 1, #items do
    local id, payload, code = items[i][1], items[i][2], READY
    tick = tick + 1
    scores[2 * i - 1], scores[2 * i] = 5e14 + tick, id
    if #payload > SMALL then
      large[#large + 1], large[#large + 2] = LOAD .. id, payload
      code, payload = READY + APART, ''
    end
    puts[2 * i - 1], puts[2 * i] = names[i], struct.pack(START, code, tick, tick - now) .. payload
    fresh[i], answers[i] = id, 'ready'
  end
  for i = 1, #large do puts[#puts + 1] = large[i] end
  local wake = redis.pcall('LLEN', WAKE) == 0

  redis.call('ZADD', QUEUE, unpack(scores))  -- first, because it is the only one that can fail
  redis.call('MSET', unpack(puts))
  meta.tick, meta.submitted = tick, meta.submitted + #items
  redis.call('HSET', META, 'in', PACKED_IN)
  publish(wake, { 'submit', fresh })
  remember(answers)
  return answers
end
