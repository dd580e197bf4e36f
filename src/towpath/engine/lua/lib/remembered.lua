-- remembered: ids of jobs that exist, or did within the time for which ids are remembered.

local items = {}                -- what this call submits
local answers, place = {}, {}   -- its answers so far; id -> its number among them
local stored, outlived = {}, {} -- id -> record; ids of jobs that ended and are no longer kept
local SAME = { [true] = 'same', [false] = 'differs' }

-- Generated ids are looked up too: a caller may submit the same job again.
local function read_stored()
  local names = {}
  for i = 1, #items do names[i] = JOB .. items[i][1] end
  local texts = redis.call('MGET', unpack(names))
  for i = 1, #items do
    local job = texts[i] and decode(items[i][1], texts[i])
    if job and job.stored then stored[items[i][1]] = job end
  end
end

-- The answer for an id that is known; nothing for one that is new.
local function known(id, payload, named)
  local twin = place[id]
  if twin then return { 'existed', answers[twin], SAME[items[twin][2] == payload] } end
  local job = stored[id]
  if job and not (job.gone_at and job.gone_at <= now) then
    local kept = job.payload or redis.call('GET', LOAD .. id)
    return { 'existed', job.state, kept and SAME[kept == payload] or 'unknown' }
  end
  local forget_at = named and redis.call('ZSCORE', SEEN, id)
  if forget_at and tonumber(forget_at) > now then return { 'existed', 'gone', 'unknown' } end
end
