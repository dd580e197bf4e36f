-- write: a line at the end of the letter.
--
-- keys   record   list     the lines
-- args   line     text     the line
-- reply  <how many lines there are>, or what the server says instead
-- cost   O(1)
-- full   refused

return redis.pcall('RPUSH', RECORD, line)
