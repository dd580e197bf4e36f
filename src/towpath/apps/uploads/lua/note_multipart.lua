-- note_multipart: publishes the id of the multipart upload in the object store.
--
-- keys   state     hash     the published fields, and those of the plan
-- args   generation int     that the caller works for
--        id        text     id of the multipart upload
-- stored begun             its calls are remembered under this name, as in earlier releases
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
