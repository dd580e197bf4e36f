-- clear: the log of a type that is gone.
--
-- keys   log      stream   deleted
--        bytes    string   deleted
-- args   none
-- reply  ok
-- cost   O(entries)
-- full   works

redis.call('UNLINK', LOG, BYTES)
return 'ok'
