-- tear: throw the letter away; nothing is answered.
--
-- keys   record   list     the lines
-- args   none
-- reply  nothing
-- cost   O(lines)
-- full   works

redis.call('UNLINK', RECORD)
