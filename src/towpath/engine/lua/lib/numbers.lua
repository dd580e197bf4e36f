-- numbers: the queue's numbers as they are stored, for scripts that use few of them or run seldom.
--
-- uses   keys

-- From the loader: field -> {format, name, ...}.
local function number_fields() return NUMBER_FIELDS end

local function stored_numbers()
  local numbers = {}
  for field, names in pairs(number_fields()) do
    local text = redis.call('HGET', META, field) or string.rep('\0', 8 * #names)
    local values = { struct.unpack(names[1], text) }
    for i = 2, #names do numbers[names[i]] = values[i - 1] end
  end
  return numbers
end

local function store_numbers(field, numbers)
  local names, values = number_fields()[field], {}
  for i = 2, #names do values[i - 1] = numbers[names[i]] end
  redis.call('HSET', META, field, struct.pack(names[1], unpack(values)))
end
