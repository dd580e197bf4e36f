-- tell: let those know who wait or watch. Nobody's job depends on it, so a key that somebody
-- gave another type stops no work: pcall.

local function tell_watchers()
  if #noted == 0 or options.events == 0 then return end
  local entry = {}
  for i, event in ipairs(noted) do
    entry[2 * i - 1] = event
    entry[2 * i] = table.concat(notes[event], '\n')
  end
  redis.pcall('XADD', EVENTS, 'MAXLEN', '~', options.events, '*', unpack(entry))
end

-- At most one token: who takes it and leaves work behind puts it back.
local function somebody_should_look()
  return wanted and redis.pcall('LLEN', WAKE) == 0
end

-- Write everything, and keep *memory* for a repeat of this call.
local function close(answer, memory)
  for key, ids in pairs(strays) do
    for _, id in ipairs(ids) do zrem(key, id) end
  end
  for i = 1, #changed do plan_job(changed[i]) end
  local wake = somebody_should_look()
  check_keys()

  write_jobs()
  write_lanes()
  write_meta()
  tell_watchers()
  if wake then redis.pcall('RPUSH', WAKE, '1') end
  remember(memory)
  return answer
end
