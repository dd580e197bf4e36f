-- append: a piece of a chunk, behind those that came before it.
--
-- keys   staging:  string   by token: what has come of a chunk
-- args   token     text     of the one who sends it
--        offset    int      where the piece begins
--        expiry    int      ms
--        piece     bytes    at most 1 MiB
-- reply  <bytes so far>
--        STAGING_OFFSET <bytes so far>
-- cost   O(size)
-- full   refused

local before = redis.call('STRLEN', STAGING .. token)
if before ~= offset then return { 'STAGING_OFFSET', before } end

local after = redis.call('APPEND', STAGING .. token, piece)
redis.call('PEXPIRE', STAGING .. token, expiry)
return after
