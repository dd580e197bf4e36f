-- answer_one: answer a call that is a single request, and remember only what a repeat needs.
--
-- uses   request

local function answer_one(verb, memory_of, recall)
  if remembered then return recall(remembered) end
  local answer = verb(unpack(request))
  return close(answer, memory_of(answer))
end
