-- delete_log: delete the log of a type that was deleted.
--
-- keys   log      stream   deleted
--        bytes    string   deleted
-- args   none
-- stored clear            under this name its calls are remembered, as by releases before
-- reply  ok
-- cost   O(entries)
-- full   works

redis.call('UNLINK', LOG, BYTES)
return 'ok'
