-- trim: remove what has been kept long enough, by age and by count.
--
-- keys   done     zset     done and cancelled ids by the time their retention ends
--        dead     zset     dead ids by time of death
--        seen     zset     remembered ids by the time to forget them
--        job      hash     the record
--        load     string   the payload
-- args   limit    int      at most so many of each
-- reply  <how many>
-- moves  done -> gone, cancelled -> gone, dead -> gone
-- cost   O(limit · log n)
-- full   works
-- uses   keys clock calls meta jobs lanes ends plan close each
-- runs   each(trim)

local function outdated(key, before, most, limit)
  local ids = redis.call('ZRANGEBYSCORE', key, '-inf', before, 'LIMIT', 0, limit)
  if #ids > 0 then return ids end
  local excess = math.min(limit, redis.call('ZCARD', key) - most)
  if excess <= 0 then return ids end
  return redis.call('ZRANGE', key, 0, excess - 1)
end

local function trim_dead(id)
  local job = read_job(id)
  if job.stored ~= 'dead' then
    remove_entry(DEAD, id)
  elseif job.lane and read_lane(job.lane).holder == id then
    job.score = now  -- it parks its lane: kept until somebody decides
  else
    count('trimmed')
    remove(job, 0)
  end
end

-- The record decides: under this id a new job may have begun since.
local function trim_done(id)
  local state = redis.call('HGET', JOB(id), 'state')
  if state and ZSET[state] ~= DONE then return remove_entry(DONE, id) end
  local job = new_job(id)
  job.stored, job.gone = 'done', true
end

-- What this call itself has touched is left for the next time.
local function trim_each(ids, trim_one)
  for _, id in ipairs(ids) do
    if not jobs[id] then trim_one(id) end
  end
  return #ids
end

local function trim(limit)
  local done = outdated(DONE, now, options.done_most, limit)
  local dead = outdated(DEAD, now - options.dead_keep, options.dead_most, limit)
  local seen = outdated(SEEN, now, options.seen_most, limit)
  for _, id in ipairs(seen) do remove_entry(SEEN, id) end
  return trim_each(done, trim_done) + trim_each(dead, trim_dead) + #seen
end
