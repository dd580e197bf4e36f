-- known: ids that exist, or did within the window that they are remembered for.

local items = {}                -- what this call submits
local answers, place = {}, {}   -- its answers so far; id -> its number among them
local stored, outlived = {}, {} -- id -> record; ids of jobs that ended and are no longer kept
local SAME = { [true] = 'same', [false] = 'differs' }

-- Ids that we made ourselves need no look-up.
local function read_named()
  local ids, names = {}, {}
  for i = 1, #items do
    local more = items[i][3]
    if more and more.named then
      ids[#ids + 1] = items[i][1]
      names[#names + 1] = JOB .. items[i][1]
    end
  end
  if #ids == 0 then return end
  local texts = redis.call('MGET', unpack(names))
  for i = 1, #ids do stored[ids[i]] = texts[i] and decode(ids[i], texts[i]) end
end

-- The answer for an id that is known; nothing for one that is new.
local function known(id, load, named)
  local twin = place[id]
  if twin then return { 'existed', answers[twin], SAME[items[twin][2] == load] } end
  if not named then return end
  local job = stored[id]
  if job and not (job.gone_at and job.gone_at <= now) then
    local kept = redis.call('GET', LOAD .. id)
    return { 'existed', job.state, kept and SAME[kept == load] or 'unknown' }
  end
  local forget_at = redis.call('ZSCORE', SEEN, id)
  if forget_at and tonumber(forget_at) > now then return { 'existed', 'gone', 'unknown' } end
  if job then outlived[#outlived + 1] = id end
end
