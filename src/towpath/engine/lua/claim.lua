-- claim: take ready jobs and lease them to a worker, in one step.
--
-- keys   queue    zset     ready ids: highest priority, then longest ready, first
--        leases   zset     leased ids by expiry, ms
--        lock     string   a copy of the lease for other programs
--        job      string   the jobs' data
--        load     string   the payloads that are large
--        lanes    hash     lane -> its holder
--        selector zset     ready ids of one selector, in the same order
--        held     zset     ids that a worker holds and claimed with a limit
--        asked    zset     selectors by when they were last asked for
--        wakes    list     a wake-up for those who wait for one selector
-- args   worker   text
--        lease    ms       for jobs that name no lease time of their own
--        count    int      at most so many, and no more than fit into one answer; at least one
--        lane     text     of this lane only; '' = of any lane
--        away     ms       since when the caller got no answer from this server; 0 = not known
--        back     ms       when it got one again; 0 = not before this call
--        sent     ms       when the caller sent this call
--        selectors list    of these selectors only; empty or left out = of any
--        max_held int      the worker may hold so many; 0 = any number
--        called   text     the selector whose wake-up the caller got, if it got one
-- reply  leases <next due: now = there may be more at once> <ready left; -1 = the worker holds its limit> <now>
-- moves  ready -> leased
-- cost   O((count + selectors + 100) · log n): reaps and promotes first, so that no other process has to
-- full   works
-- short  plain_claim
-- uses   keys clock calls meta record notify jobs moves lanes ends reap promote trim choose lease limit asking send sets plan close answer_one
-- runs   answer_one(claim, claim_memory, recall_claim)

local REAP_MOST, PROMOTE_LEAST = 100, 100

local function sweep(limit, away, back, sent)
  local full_reap = reap(REAP_MOST, away, back, sent) == REAP_MOST
  local full_promote = promote(limit) == limit
  -- Trim once a second, and in every claim while there is more than one trim deletes.
  if now - meta.trimmed_at >= TRIM_EVERY_MS and trim(2 * limit) < 2 * limit then
    set_meta('trimmed_at', now)
  end
  return full_reap or full_promote
end

local function claim(worker, lease, count, lane, away, back, sent, selectors, max_held, called)
  local swept = sweep(math.max(PROMOTE_LEAST, count), away, back, sent)
  local paused, limited = meta.paused > 0, max_held and max_held > 0
  if limited then count = math.min(count, room_of(worker, max_held)) end
  local leases, cut = {}, false
  if count > 0 then note_asked(selectors) end
  if count > 0 and not paused then
    local found = lane == '' and ready_candidates(count, selectors) or lane_candidates(lane)
    local chosen, payloads
    chosen, payloads, cut = choose(found, count)
    for i, job in ipairs(chosen) do
      lease_job(job, worker, lease, limited)
      leases[i] = lease_answer(job, payloads[i], job.score)
    end
  end
  local due, left = next_due(swept or cut), ready_left()
  -- A claimer that got jobs may be busy for long, so another waiter should look for what is due soon.
  local soon = #leases > 0 and due > 0 and due - now < WAIT_CAP_MS
  wanted = not paused and (left > 0 or soon)
  if selectors and not paused then pass_on(called, soon) end
  return { leases, due, count > 0 and left or -1, now }
end
