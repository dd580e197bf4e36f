-- adopt: replaces the staged bytes of a chunk by a copy that was continued.
--
-- keys   staging:  string   by staging token: bytes of a chunk that are not placed yet
-- args   token     text     staging token of the bytes
--        offset    int      how many bytes must be staged there
--        source    text     staging token of the copy
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
