-- resume: hand out jobs again after pause.
--
-- keys   meta     hash     paused
--        queue    zset     ready ids
--        job      string   the data of the first of them, whose waiters are woken
-- args   none
-- reply  resumed
-- moves  none
-- cost   O(log n)
-- full   works
-- uses   keys clock calls meta record notify jobs moves lanes send sets plan close answer_each
-- runs   answer_each(resume)

local LOOK_MOST = 100  -- ready jobs

local function resume()
  set_meta('paused', 0)
  local ids = redis.call('ZRANGE', QUEUE, 0, LOOK_MOST - 1)
  read_jobs(ids)
  for _, id in ipairs(ids) do want(jobs[id]) end
  wanted = true
  return 'resumed'
end
