-- restore: publish again that an issue is held, if the key was deleted.
--
-- keys   record   string   issue_lock_<id>: exists = locked
-- args   expires  int      when the lease ends, ms
-- reply  <1 if it was missing, else 0>
-- cost   O(1)
-- full   refused

if redis.call('SET', RECORD, 'locked', 'PXAT', expires, 'NX') then return 1 end
return 0
