-- asking: which selectors claims ask for, and which waiters to wake next.
--
-- uses   more_keys outlook

local ASKED_MOST, FORGET_MOST = 10000, 200  -- selectors that are remembered; how many are forgotten at a time
local SOON_MOST = 10                        -- jobs due soon, and leases that end soon, that are looked at

-- Remember when jobs were asked for: `explain` reads it.
local function note_asked(selectors)
  if not selectors or #selectors == 0 then return set_meta('asked_at', now) end
  for _, selector in ipairs(selectors) do zadd(ASKED, now, selector) end
  local excess = redis.call('ZCARD', ASKED) - ASKED_MOST
  local oldest = excess > 0 and redis.call('ZRANGE', ASKED, 0, math.min(excess, FORGET_MOST) - 1)
  for _, selector in ipairs(oldest or {}) do take_out(ASKED, selector) end
end

local function want_those_of(key)
  local ids = redis.call(
    'ZRANGEBYSCORE', key, '(' .. int(now), int(now + WAIT_CAP_MS), 'LIMIT', 0, SOON_MOST)
  read_jobs(ids)
  for _, id in ipairs(ids) do
    local selector = jobs[id].selector
    if selector then wanted_of[selector] = true end
  end
end

-- A caller that was woken for the selector *called* and leaves such jobs behind wakes the next waiter.
-- If it got jobs, it may be busy for long: then *soon* wakes waiters for what falls due soon.
local function pass_on(called, soon)
  if called ~= '' and ready_left(called) > 0 then wanted_of[called] = true end
  if soon then
    want_those_of(RETRY)
    want_those_of(LEASES)
  end
end
