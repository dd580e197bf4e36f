-- save_queued: saves how many chunks wait in Redis. The turn to sweep ends by its expiry, not by this.
--
-- keys   queued    string   chunks that waited in Redis at the last sweep
-- args   chunks    int      how many
--        expiry    int      ms
-- stored swept             its calls are remembered under this name, as in earlier releases
-- reply  ok
-- cost   O(1)
-- full   refused

redis.call('SET', QUEUED, chunks, 'PX', expiry)
return 'ok'
