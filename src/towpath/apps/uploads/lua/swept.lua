-- swept: how many chunks wait in Redis, for all who ask; the next turn comes when this one is over.
--
-- keys   queued    string   chunks that waited in Redis when somebody swept last
-- args   chunks    int      how many
--        expiry    int      ms
-- reply  ok
-- cost   O(1)
-- full   refused

redis.call('SET', QUEUED, chunks, 'PX', expiry)
return 'ok'
