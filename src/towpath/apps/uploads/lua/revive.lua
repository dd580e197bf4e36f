-- revive: continues a failed upload with its received chunks and stored parts.
--
-- keys   state     hash     the published fields, and those of the plan
--        turns     hash     part -> its turn: how often it lost chunks
-- args   generation int     of the row
-- reply  revived
--        UPLOAD_UNKNOWN
-- cost   O(1)
-- full   works
-- uses   clock

local before = tonumber(redis.call('HGET', STATE, 'generation') or -1)
if before < 0 or before > generation then return 'UPLOAD_UNKNOWN' end

redis.call('HSET', STATE, 'status', 'UPLOADING', 'generation', int(generation), 'error_message', '',
  'updated_at', int(now))
redis.call('UNLINK', TURNS)
return 'revived'
