-- clear: the log of a type that is gone.
--
-- keys   log      stream   removed
--        bytes    string   removed
-- args   none
-- reply  ok
-- cost   O(entries)
-- full   works

redis.call('UNLINK', LOG, BYTES)
return 'ok'
