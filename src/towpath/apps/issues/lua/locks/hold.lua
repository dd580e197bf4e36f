-- hold: outsiders see that an issue is held, until its lease ends.
--
-- keys   record   string   issue_lock_<id>: there = locked
-- args   expires  int      when the lease ends, ms
-- reply  ok
-- cost   O(1)
-- full   refused

redis.call('SET', RECORD, 'locked', 'PXAT', expires)
return 'ok'
