-- lines: the letter so far.
--
-- keys   record   list     the lines
-- args   none
-- reply  <lines>
-- cost   O(lines)
-- full   works

return redis.call('LRANGE', RECORD, 0, -1)
