-- waits: jobs that are still to be claimed. They may be moved and replaced, and count towards max_length.

local WAITS = { ready = true, delayed = true, waiting = true }
local length_keys = { QUEUE, RETRY, WAITING }

-- How many more jobs the queue takes.
local function room_left()
  if options.max_length == 0 then return math.huge end
  local room = options.max_length
  for _, key in ipairs(length_keys) do room = room - redis.call('ZCARD', key) end
  return room
end
