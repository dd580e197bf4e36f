-- leave: a worker or an instance stops serving these types. With its last instance, an app is gone.
--
-- keys   apps:    zset     by type: the apps that serve it, by the time until they are alive, ms
--        alive:   zset     by queue: who serves it, by the time until they are alive, ms
-- args   app      text     '' = a plug-in worker
--        who      text     which worker or instance
--        types    list     of each type: its name, its key, its queue, its queue without the app
-- reply  ok
-- cost   O(types log n)
-- full   works
-- uses   clock

for _, each in ipairs(types) do
  local name, queue = each[1], each[3]
  local before = redis.call('ZSCORE', ALIVE .. queue, who)
  if before then
    -- Kept with the time now: the last entry shows since when nothing serves the type.
    if tonumber(before) > now then redis.call('ZADD', ALIVE .. queue, now, who) end
    local last = redis.call('ZREVRANGE', ALIVE .. queue, 0, 0, 'WITHSCORES')
    if app ~= '' and redis.call('ZSCORE', APPS .. name, app) then
      redis.call('ZADD', APPS .. name, last[2], app)
    end
  end
end
return 'ok'
