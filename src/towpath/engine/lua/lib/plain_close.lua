-- plain_close: what the parts of the short way write together.

local fields, told = {}, {}  -- of the queue's own numbers: name, value, ...; event, {id, ...}, ...

local function close_plain(wake, answer, memory)
  if #fields > 0 then redis.call('HSET', META, unpack(fields)) end
  publish(wake, told)
  remember(memory)
  return answer
end
