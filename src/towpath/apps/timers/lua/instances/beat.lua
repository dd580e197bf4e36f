-- beat: keep an instance alive for some more time.
--
-- keys   owners   hash     by id: its app, and its owner behind a NUL if it has one
--        alive    zset     ids by the time until which they are alive, ms
-- args   id       text     which instance
--        app      text     whose instance: the app, and the owner behind a NUL if it has one
--        lasts    int      how long it is alive from now, ms
-- reply  ok
--        UNKNOWN_INSTANCE
-- uses   clock
-- cost   O(log n)
-- full   works

if redis.call('HGET', OWNERS, id) ~= app then return 'UNKNOWN_INSTANCE' end
redis.call('ZADD', ALIVE, int(now + lasts), id)
return 'ok'
