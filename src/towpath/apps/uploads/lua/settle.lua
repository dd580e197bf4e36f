-- settle: the upload has ended, as its row says.
--
-- keys   state     hash     the document's fields, and those of the plan
--        received  string   a bit per chunk that is here or in the store
--        digests   hash     chunk -> its CRC-64/NVME
--        pending   hash     chunk -> the token its bytes came under, until its part is stored
--        fill      hash     part -> how many of its chunks are here
--        turns     hash     part -> how often it was begun anew
--        etags     hash     part -> ETag, size and checksum, as the store answered
-- args   generation int     of the row
--        status    text     how
--        fields    list     name, value, …
--        drop      int      1 = what was known of chunks and parts goes
-- reply  ok <part, …: those that were begun>
--        UPLOAD_UNKNOWN
--        UPLOAD_STALE
-- cost   O(parts that were begun)
-- full   works
-- uses   clock upload

if not upload.status then return { 'UPLOAD_UNKNOWN' } end
if upload.generation > generation then return { 'UPLOAD_STALE' } end
local begun = redis.call('HKEYS', FILL)

redis.call('HSET', STATE, 'status', status, 'updated_at', int(now))
if #fields > 0 then redis.call('HSET', STATE, unpack(fields)) end
-- What has failed may go on; of what is completed, the same chunk again is the same.
if status ~= 'FAILED' then redis.call('UNLINK', PENDING, FILL, TURNS) end
if drop == 1 then
  redis.call('UNLINK', RECEIVED, DIGESTS, PENDING, FILL, TURNS, ETAGS)
  redis.call('HSET', STATE, 'received_chunks', 0, 'uploaded_chunks', 0, 'bytes_uploaded', 0,
    'parts', 0)
end
return { 'ok', begun }
