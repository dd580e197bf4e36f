-- plain_close: what the parts of the short way write together.

local told = {}  -- event, {id, ...}, ...

local function close_plain(wake, answer, memory)
  redis.call('HSET', META, 'out', PACKED_OUT)
  publish(wake, told)
  remember(memory)
  return answer
end
