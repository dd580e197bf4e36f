-- append: adds a piece to the staged bytes of a chunk.
--
-- keys   staging:  string   by staging token: bytes of a chunk that are not placed yet
-- args   token     text     staging token
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
