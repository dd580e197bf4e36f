-- begun: the store has begun a multipart upload: its id is published.
--
-- keys   state     hash     the document's fields, and those of the plan
-- args   generation int     that the caller works for
--        id        text     of the multipart upload
-- reply  ok
--        UPLOAD_UNKNOWN
--        PART_STALE
-- cost   O(1)
-- full   works
-- uses   upload

if not upload.status then return { 'UPLOAD_UNKNOWN' } end
if upload.generation ~= generation then return { 'PART_STALE' } end
redis.call('HSET', STATE, 's3_upload_id', id)
return { 'ok' }
