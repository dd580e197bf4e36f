-- hold: publish that an issue is held, until its lease ends.
--
-- keys   record   string   issue_lock_<id>: exists = locked
-- args   expires  int      when the lease ends, ms
-- reply  ok
-- cost   O(1)
-- full   refused

redis.call('SET', RECORD, 'locked', 'PXAT', expires)
return 'ok'
