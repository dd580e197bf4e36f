-- fork: a copy of what has come of a chunk, to be gone on with and kept or not.
--
-- keys   staging:  string   by token: what has come of a chunk
-- args   source    text     the token it comes under
--        offset    int      how much must have come
--        token     text     of the copy
--        expiry    int      ms
-- reply  <bytes>
--        STAGING_OFFSET <bytes>
-- cost   O(size)
-- full   refused

local bytes = redis.call('GET', STAGING .. source) or ''
if #bytes ~= offset then return { 'STAGING_OFFSET', #bytes } end

redis.call('SET', STAGING .. token, bytes, 'PX', expiry)
return #bytes
