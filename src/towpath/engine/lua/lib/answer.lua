-- answer: how much one answer carries. Over a line on which it takes longer than a call may last, it
-- would never arrive: a repeat is as long.

local ANSWER_BYTES = 8 * 1024 * 1024

-- Reads the large payloads of *ids*, one with each call. As many are read at a time as there is room
-- for, whatever their size, and then twice as many: few are read in vain.
local function payload_reader(ids)
  local at, from, to, texts = 0, 1, 0, {}
  local step = math.ceil(ANSWER_BYTES / options.max_payload)
  return function()
    at = at + 1
    if at > to then
      local names = {}
      from, to, step = at, math.min(#ids, at + step - 1), 2 * step
      for i = from, to do names[i - from + 1] = LOAD .. ids[i] end
      texts = redis.call('MGET', unpack(names))
    end
    return texts[at - from + 1]
  end
end
