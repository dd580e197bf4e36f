-- publish_breaker: publish that a scheduler avoids an instance for some time, or calls it again. For display.
--
-- keys   broken   zset     instance and scheduler, by the end of the pause, ms
-- args   id       text     which instance
--        by       text     which scheduler
--        pause    int      how long it is avoided, ms; 0 = it is called again
-- stored trip             under this name its calls are remembered, as by releases before
-- reply  ok
-- uses   clock
-- cost   O(log n)
-- full   refused

redis.call('ZREMRANGEBYSCORE', BROKEN, '-inf', int(now))
if pause > 0 then
  redis.call('ZADD', BROKEN, int(now + pause), id .. ' ' .. by)
else
  redis.call('ZREM', BROKEN, id .. ' ' .. by)
end
return 'ok'
