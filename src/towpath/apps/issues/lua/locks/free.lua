-- free: outsiders see that nobody holds an issue. A lock that lasts longer is another agent's.
--
-- keys   record   string   issue_lock_<id>: there = locked
-- args   expires  int      when the lease that has ended would have, ms
-- reply  ok
-- cost   O(1)
-- full   works
-- uses   clock

local left = redis.call('PTTL', RECORD)
if now + left <= expires + 1 then redis.call('DEL', RECORD) end
return 'ok'
