-- answer_each: answer a batch item by item, in order, then write once.
--
-- uses   request

local function first(item) return item[1] end

-- *id_of* returns the id of an item's job: the jobs of the whole batch are read in one step.
local function answer_each(verb, id_of)
  if remembered then return remembered end
  local items, ids, answers = request, {}, {}
  if id_of then
    for _, item in ipairs(items) do ids[#ids + 1] = id_of(item) end
    read_jobs(ids)
  end
  for i, item in ipairs(items) do answers[i] = verb(unpack(item)) end
  return close(answers, answers)
end
