-- send: a command with a list of arguments of any length.

-- unpack() takes at most 8,000 values.
local function send(command, list, key)
  for from = 1, #list, 4000 do
    local to = math.min(from + 3999, #list)
    if key then
      redis.call(command, key, unpack(list, from, to))
    else
      redis.call(command, unpack(list, from, to))
    end
  end
end
