-- description: read the description of an instance.
--
-- keys   said     hash     by id: the description of the instance
-- args   id       text     which instance
-- reply  <description>
--        nothing
-- cost   O(1)
-- full   works

return redis.call('HGET', SAID, id)
