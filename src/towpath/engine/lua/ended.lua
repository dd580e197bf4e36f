-- ended: how these jobs ended: all data of those that have ended, a word for the others.
--
-- keys   job      string   the jobs' data
--        load     string   the payloads that are large
--        result   string   the results
-- args   clock    ms       '' = Redis's clock
--        room     int      bytes of payloads and results, after which the other jobs are left for later
--        ids      text     one per line
-- reply  <data, payload, result>, 'open', 'gone' or 'later' of each, in order
-- moves  none
-- cost   O(ids)
-- full   works
-- uses   keys layout clock record

local ENDED = { done = true, cancelled = true, dead = true }
local room, keys, ids, answer = tonumber(ARGV[2]), {}, {}, {}
for id in string.gmatch(ARGV[3], '[^\n]+') do
  ids[#ids + 1] = id
  keys[#keys + 1] = JOB .. id
end

local texts = redis.call('MGET', unpack(keys))
for i, id in ipairs(ids) do
  local job = texts[i] and decode(id, texts[i])
  if not (job and job.stored) or (job.gone_at and job.gone_at <= now) then
    answer[i] = 'gone'
  elseif not ENDED[job.state] then
    answer[i] = 'open'
  elseif room <= 0 then
    answer[i] = 'later'
  else
    local payload = job.payload or redis.call('GET', LOAD .. id) or ''
    local result = redis.call('GET', RESULT .. id) or ''
    answer[i] = { without_payload(texts[i]), payload, result }
    room = room - #payload - #result
  end
end
return answer
