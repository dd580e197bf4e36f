-- calls: the memory that makes every call repeatable.
-- A channel has one call in flight. Its last number and answer are kept, so that a call whose
-- reply was lost can be sent again: it then has no effect and gets the same answer.

local CALL_KEPT_MS = 600000  -- a silent channel is forgotten; the expiry is garbage collection
local channel, number = ARGV[2], ARGV[3]
local remembered             -- the answer that this same call got before

do
  local stored = redis.call('GET', CALL .. channel)
  if stored then
    local last, verb = string.match(stored, '^(%d+) (%l+)')
    if last == number and verb ~= VERB then
      return redis.error_reply('CALL_TAKEN ' .. verb)
    elseif last == number then
      local answer = string.sub(stored, #last + #verb + 3)
      remembered = answer == '' and { 'ready' } or cmsgpack.unpack(answer)  -- see `lone_submit`
    elseif tonumber(last) > tonumber(number) then
      return redis.error_reply('CALL_STALE ' .. last)
    end
  end
end

local function remember(answer)
  local memory = number .. ' ' .. VERB .. ' ' .. cmsgpack.pack(answer)
  redis.call('SET', CALL .. channel, memory, 'PX', CALL_KEPT_MS)
end
