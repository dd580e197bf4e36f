-- write: a line at the end of the letter.
--
-- keys   record   list     the lines
-- args   line     text     the line
-- reply  <how many lines there are>
-- cost   O(1)
-- full   refused

return redis.call('RPUSH', RECORD, line)
