-- beat: an instance is alive for some more time.
--
-- keys   owners   hash     by id: its app
--        alive    zset     ids by the end of their time, ms
-- args   id       text     which instance
--        app      text     whose instance
--        lasts    int      for how long it is alive, ms
-- reply  ok
--        UNKNOWN_INSTANCE
-- uses   clock
-- cost   O(log n)
-- full   works

if redis.call('HGET', OWNERS, id) ~= app then return 'UNKNOWN_INSTANCE' end
redis.call('ZADD', ALIVE, int(now + lasts), id)
return 'ok'
