-- choose: which ready jobs a claim gets: highest priority first, then longest ready.
--
-- uses   answer select

-- The first *most* jobs of the stored ready set, in order. Strays are skipped, up to a limit.
local function stored_ready(most)
  local found, from = {}, 0
  repeat
    local ids = redis.call('ZRANGE', QUEUE, from, from + most - #found - 1)
    read_jobs(ids)
    for i = 1, #ids do
      local job = jobs[ids[i]]
      if job.state == 'ready' and job.stored == 'ready' then
        found[#found + 1] = job
      else
        set_aside(QUEUE, ids[i])
      end
    end
    from = from + #ids
  until #ids == 0 or #found == most or from > STRAYS_MOST
  return found
end

-- The same, with the jobs that this call itself made ready: those are not written yet.
local function ready_candidates(most, selectors)
  local named, risen = selectors and #selectors > 0 and {}, {}
  for i = 1, named and #selectors or 0 do named[selectors[i]] = true end
  local found = named and selected_ready(selectors, named, most) or stored_ready(most)
  for i = 1, #changed do
    local fits = not named or named[changed[i].selector or '']
    if changed[i].state == 'ready' and fits then risen[#risen + 1] = changed[i] end
  end
  if #risen == 0 then return found end
  for _, job in ipairs(found) do
    job.score = (100 - (job.priority or 50)) * 1e13 + (job.turn or job.tick)
    risen[#risen + 1] = job
  end
  table.sort(risen, by_place)
  return risen
end

local function lane_candidates(name)
  local holder = read_lane(name).holder
  local job = holder and read_job(holder)
  return job and job.state == 'ready' and { job } or {}
end

-- The first *most* jobs with their payloads, as many as fit into one answer, and whether there was
-- no room for another. Jobs whose payload is missing become dead: no worker can run them.
local function choose(found, most)
  local chosen, payloads, large, size = {}, {}, {}, 0
  for i = 1, math.min(most, #found) do
    if not found[i].payload then large[#large + 1] = found[i].id end
  end
  local read_large = payload_reader(large)
  for i = 1, math.min(most, #found) do
    local text = found[i].payload or read_large()
    size = size + #(text or '')
    if size > ANSWER_BYTES and #chosen > 0 then return chosen, payloads, true end
    if text then
      chosen[#chosen + 1] = found[i]
      payloads[#payloads + 1] = text
    else
      bury(found[i], 'NO_PAYLOAD: the payload is not there')
    end
  end
  return chosen, payloads, false
end
