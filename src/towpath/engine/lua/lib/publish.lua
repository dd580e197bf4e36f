-- publish: one entry of the stream of events, and the token that wakes who waits. Nobody's job
-- depends on it, so a key that somebody gave another type stops no work: pcall.

local WAIT_CAP_MS = 5000  -- nobody waits longer without looking

local function publish(wake, ...)
  if ... and options.events > 0 then
    redis.pcall('XADD', EVENTS, 'MAXLEN', '~', options.events, '*', ...)
  end
  if wake then redis.pcall('RPUSH', WAKE, '1') end
end
