-- grouping: error groups, in which dead jobs with the same cause are counted together. The text of a
-- group is the first line of the reason, without what differs from job to job.
--
-- uses   more_keys

local GROUPS_MOST, GROUP_READ, GROUP_BYTES, ID_LEAST = 100, 500, 120, 12
local groups = {}  -- of changed jobs: group -> its text if it is new, true if it exists, false to delete it
local groups_new = 0

-- Numbers and ids become '#': a word that begins with a digit, or is long and has one, is an id.
local function group_text(reason)
  local line = string.match(string.sub(reason, 1, GROUP_READ), '^%s*([^\r\n]*)')
  line = string.gsub(line, '^(LEASE_ENDED: worker ).*( was silent)', '%1#%2')
  line = string.gsub(line, '%c', ' ')
  line = string.gsub(line, '[%w_%-]+', function(word)
    if string.find(word, '^%d') or (#word >= ID_LEAST and string.find(word, '%d')) then return '#' end
    return (string.gsub(word, '%d+', '#'))
  end)
  return string.sub(line, 1, GROUP_BYTES)
end

-- The number of groups in a queue is limited; jobs with further errors are in the group 'other'.
local function group_of(reason)
  local text = group_text(reason)
  local group = string.sub(redis.sha1hex(text), 1, 12)
  if groups[group] or redis.call('HGET', GROUPS, group) then return group end
  if redis.call('HLEN', GROUPS) + groups_new >= GROUPS_MOST then
    group, text = 'other', ''
  end
  groups[group], groups_new = text, groups_new + 1
  return group
end

local function leave_group(job)
  if not job.group then return end
  zrem(GROUP .. job.group, job.id)
  groups[job.group] = groups[job.group] or true
  job.group = nil
end

local function plan_group(job)
  if job.state ~= 'dead' then return leave_group(job) end
  if job.score then zadd(GROUP .. job.group, job.score, job.id) end
  groups[job.group] = groups[job.group] or true
end
