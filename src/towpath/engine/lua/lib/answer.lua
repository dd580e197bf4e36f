-- answer: how large one answer may be. An answer that takes longer than a call may last, over a slow
-- connection, would never arrive, because each repeat takes as long.

local ANSWER_BYTES = 8 * 1024 * 1024

-- Returns a function that returns the large payloads of *ids*, one with each call. It first reads as
-- many as fit into an answer at any size, then twice as many each time: few are read in vain.
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
