-- about: what one instance said of itself.
--
-- keys   said     hash     by id: what the instance said of itself
-- args   id       text     which instance
-- reply  <what it said>
--        nothing
-- cost   O(1)
-- full   works

return redis.call('HGET', SAID, id)
