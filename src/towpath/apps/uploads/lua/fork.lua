-- fork: copies the staged bytes of a chunk; the copy is continued, then adopted or deleted.
--
-- keys   staging:  string   by staging token: bytes of a chunk that are not placed yet
-- args   source    text     staging token of the bytes
--        offset    int      how many bytes must be staged there
--        token     text     staging token of the copy
--        expiry    int      ms
-- reply  <bytes>
--        STAGING_OFFSET <bytes>
-- cost   O(size)
-- full   refused

local bytes = redis.call('GET', STAGING .. source) or ''
if #bytes ~= offset then return { 'STAGING_OFFSET', #bytes } end

redis.call('SET', STAGING .. token, bytes, 'PX', expiry)
return #bytes
