-- each: answer a batch item by item, in order, then write once.

local function each(verb)
  if remembered then return remembered end
  local answers = {}
  for i, item in ipairs(cmsgpack.unpack(ARGV[4])) do answers[i] = verb(unpack(item)) end
  return close(answers, answers)
end
