-- plain_close: the last writes of the short way, which claims and completions share.

local event_ids = {}  -- event, {id, ...}, ...

local function close_plain(wake, answer, memory)
  redis.call('HSET', META, 'out', PACKED_OUT)
  publish(wake, event_ids)
  remember(memory)
  return answer
end
