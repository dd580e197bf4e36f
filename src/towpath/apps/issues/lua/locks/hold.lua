-- hold: publish that an issue is held, until its lease ends. A key that lasts longer is of a later hold.
--
-- keys   record   string   issue_lock_<id>: exists = locked
-- args   expires  int      when the lease ends, ms
-- reply  ok
-- cost   O(1)
-- full   refused
-- uses   clock

local left = redis.call('PTTL', RECORD)
if now + left < expires then redis.call('SET', RECORD, 'locked', 'PXAT', expires) end
return 'ok'
