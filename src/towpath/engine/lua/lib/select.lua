-- select: the ready jobs of some selectors, in order. Only the first job of each selector, its head,
-- is read. The best head is taken, and the next job of its selector becomes the head. If many
-- selectors are named, the first of all ready jobs are tried before.
--
-- uses   more_keys

local FEW, FRONT, STEP = 20, 16, 4  -- selectors whose heads are read at once; jobs at the front; so many at a time

local function by_place(a, b)
  if a.score ~= b.score then return a.score < b.score end
  return a.id < b.id
end

local function advance_head(head)
  local found = redis.call('ZRANGE', head.key, head.rank, head.rank, 'WITHSCORES')
  head.id, head.score, head.rank = found[1], tonumber(found[2]), head.rank + 1
end

local function heads_of(selectors)
  local heads = {}
  for _, selector in ipairs(selectors) do
    local head = { selector = selector, key = SELECTOR .. selector, rank = 0 }
    advance_head(head)
    if head.id then heads[#heads + 1] = head end
  end
  return heads
end

local function best_of(heads)
  local best
  for _, head in ipairs(heads) do
    if head.id and (not best or by_place(head, best)) then best = head end
  end
  return best
end

-- All ready jobs have the same order as those of a selector, so the first that fits is the best head. False = too
-- few at the front fit, or there is a stray, which the long way sets aside.
local function front_ready(named, most)
  local found = {}
  for from = 0, FRONT - 1, STEP do
    local ids = redis.call('ZRANGE', QUEUE, from, from + STEP - 1)
    read_jobs(ids)
    for _, id in ipairs(ids) do
      local job = jobs[id]
      if job.state ~= 'ready' or job.stored ~= 'ready' then return false end
      if named[job.selector or ''] then found[#found + 1] = job end
      if #found == most then return found end
    end
  end
  return false
end

-- The first *most* of the stored jobs. Strays are skipped, up to a limit.
local function selected_ready(selectors, named, most)
  local front = #selectors > FEW and most <= FRONT and front_ready(named, most)
  if front then return front end
  local found, heads, passed = {}, heads_of(selectors), 0
  local head = best_of(heads)
  while head and #found < most and passed <= STRAYS_MOST do
    local job = read_job(head.id)
    if job.state == 'ready' and job.stored == 'ready' and job.selector == head.selector then
      found[#found + 1] = job
    else
      passed = passed + 1
      if not job.stored then take_out(QUEUE, head.id) end
      set_aside(head.key, head.id)
    end
    advance_head(head)
    head = best_of(heads)
  end
  return found
end
