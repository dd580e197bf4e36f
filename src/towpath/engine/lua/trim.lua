-- trim: delete what has been kept long enough, by age and by count.
--
-- keys   done     zset     done and cancelled ids by the time their retention ends
--        dead     zset     dead ids by time of death
--        seen     zset     remembered ids by the time to forget them
--        job      string   the job's data
--        load     string   the payload, if it is large
--        result   string   the result
-- args   limit    int      at most so many of each
-- reply  <how many>
-- moves  done -> gone, cancelled -> gone, dead -> gone
-- cost   O(limit · log n)
-- full   works
-- uses   keys clock calls meta record notify jobs moves lanes ends send sets plan close answer_each
-- runs   answer_each(trim)

local function outdated(key, before, most, limit)
  local ids = redis.call('ZRANGEBYSCORE', key, '-inf', before, 'LIMIT', 0, limit)
  if #ids > 0 then return ids end
  local excess = math.min(limit, redis.call('ZCARD', key) - most)
  if excess <= 0 then return ids end
  return redis.call('ZRANGE', key, 0, excess - 1)
end

-- Returns whether the job is deleted.
local function trim_dead(job)
  if job.stored ~= 'dead' then
    take_out(DEAD, job.id)
  elseif job.lane and read_lane(job.lane).holder == job.id then
    enter(job, 'dead', now)  -- it parks its lane: kept until an operator decides
    return false
  else
    count('trimmed')
    delete_job(job)
  end
  return true
end

-- The job's data decides, because a new job may have the same id by now.
local function trim_done(job)
  if ZSET[job.stored] == DONE or not job.stored then
    job.stored, job.state = 'done', 'gone'
    change(job)
  else
    take_out(DONE, job.id)
  end
  return true
end

-- Jobs that this same call has changed are left for the next trim.
local function trim_each(ids, trim_one)
  local gone = 0
  read_jobs(ids)
  for _, id in ipairs(ids) do
    if not jobs[id].changed and trim_one(jobs[id]) then gone = gone + 1 end
  end
  return gone
end

local function trim(limit)
  local done = outdated(DONE, now, options.keep_most, limit)
  local dead = outdated(DEAD, now - options.keep_dead, options.keep_dead_most, limit)
  local seen = outdated(SEEN, now, options.remember_most, limit)
  for _, id in ipairs(seen) do take_out(SEEN, id) end
  return trim_each(done, trim_done) + trim_each(dead, trim_dead) + #seen
end
