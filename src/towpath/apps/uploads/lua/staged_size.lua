-- staged_size: how many bytes of an incomplete chunk are staged.
--
-- keys   staging:  string   by staging token: bytes of a chunk that are not placed yet
-- args   token     text     staging token
-- stored staged            its calls are remembered under this name, as in earlier releases
-- reply  <bytes>
-- cost   O(1)
-- full   works

return redis.call('STRLEN', STAGING .. token)
