-- adopt: what was gone on with in a copy is what has come of the chunk.
--
-- keys   staging:  string   by token: what has come of a chunk
-- args   token     text     the token it comes under
--        offset    int      how much must have come before
--        source    text     the token of the copy
--        expiry    int      ms
-- reply  <bytes>
--        STAGING_OFFSET <bytes>
-- cost   O(1)
-- full   works

local before = redis.call('STRLEN', STAGING .. token)
if before ~= offset then return { 'STAGING_OFFSET', before } end
if redis.call('EXISTS', STAGING .. source) == 0 then return { 'STAGING_OFFSET', -1 } end

local after = redis.call('STRLEN', STAGING .. source)
redis.call('RENAME', STAGING .. source, STAGING .. token)
redis.call('PEXPIRE', STAGING .. token, expiry)
return after
