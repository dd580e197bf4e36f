-- beat: an instance is alive for some more time.
--
-- keys   owners   hash     by id: its app, and its owner behind a NUL if it has one
--        alive    zset     ids by the end of their time, ms
-- args   id       text     which instance
--        app      text     whose instance: the app, and the owner behind a NUL if it has one
--        lasts    int      for how long it is alive, ms
-- reply  ok
--        UNKNOWN_INSTANCE
-- uses   clock
-- cost   O(log n)
-- full   works

if redis.call('HGET', OWNERS, id) ~= app then return 'UNKNOWN_INSTANCE' end
redis.call('ZADD', ALIVE, int(now + lasts), id)
return 'ok'
