-- free: delete the lock key after a hold. A key that lasts longer belongs to a later hold.
--
-- keys   record   string   issue_lock_<id>: exists = locked
-- args   expires  int      when the lease of that hold would have ended, ms
-- reply  ok
-- cost   O(1)
-- full   works
-- uses   clock

local left = redis.call('PTTL', RECORD)
if now + left <= expires + 1 then redis.call('DEL', RECORD) end
return 'ok'
