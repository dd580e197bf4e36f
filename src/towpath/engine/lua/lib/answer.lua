-- answer: how much one answer carries. Over a line on which it takes longer than a call may last, it
-- would never arrive: a repeat is as long.

local ANSWER_BYTES = 8 * 1024 * 1024

-- Which of *most* payloads to read at a time, from one to another: at first no more than there is
-- room for, whatever their size, so that few are read in vain.
local function portions(most)
  local from, step = 1, math.ceil(ANSWER_BYTES / options.max_payload)
  return function()
    local first, last = from, math.min(most, from + step - 1)
    from, step = last + 1, 2 * step
    if first <= last then return first, last end
  end
end
