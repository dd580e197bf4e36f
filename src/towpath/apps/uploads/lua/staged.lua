-- staged: how much has come of a chunk that is not whole.
--
-- keys   staging:  string   by token: what has come of a chunk
-- args   token     text     under which it comes
-- reply  <bytes>
-- cost   O(1)
-- full   works

return redis.call('STRLEN', STAGING .. token)
