-- epoch: whether this server still knows what it was told of issues.
--
-- keys   told     string   there = it was told, and has not lost it since
-- args   none
-- reply  <1 if it knows, else 0>
-- cost   O(1)
-- full   works

return redis.call('EXISTS', TOLD)
