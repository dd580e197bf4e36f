-- select: the ready jobs of some selectors, in order. Of each selector only the head is looked at;
-- the best of them is taken, and the next of its selector is the head.
--
-- uses   more_keys

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

-- The first of the stored ones. Strays do not count, as far as one look goes.
local function selected_ready(selectors, most)
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
