-- plain_close: the last writes of the short way, which claims and completions share.

local told = {}  -- event, {id, ...}, ...

local function close_plain(wake, answer, memory)
  redis.call('HSET', META, 'out', PACKED_OUT)
  publish(wake, told)
  remember(memory)
  return answer
end
