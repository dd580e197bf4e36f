-- version: a number that has grown whenever types or owners have changed.
--
-- keys   version  string   grows with each change of keys and owners
-- args   none
-- reply  <version>
-- cost   O(1)
-- full   works

return redis.call('GET', VERSION) or '0'
