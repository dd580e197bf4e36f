-- end_upload: notes that the upload has ended, as its row says.
--
-- keys   state     hash     the published fields, and those of the plan
--        received  string   a bit per chunk that is in Redis or stored
--        digests   hash     chunk -> its CRC-64/NVME
--        pending   hash     chunk -> its staging token, until its part is stored
--        fill      hash     part -> how many of its chunks were received, until it is stored
--        turns     hash     part -> its turn: how often it lost chunks
--        etags     hash     part -> ETag, size and checksum, from the object store
-- args   generation int     of the row
--        status    text     its last status
--        fields    list     of the state: name, value, …
--        drop      int      1 = forget its chunks and parts
-- stored settle            its calls are remembered under this name, as in earlier releases
-- reply  ok <part, …: those that had begun>
--        UPLOAD_UNKNOWN
--        UPLOAD_STALE
-- cost   O(parts that had begun)
-- full   works
-- uses   clock upload

if not upload.status then return { 'UPLOAD_UNKNOWN' } end
if upload.generation > generation then return { 'UPLOAD_STALE' } end
local begun = redis.call('HKEYS', FILL)

redis.call('HSET', STATE, 'status', status, 'updated_at', int(now))
if #fields > 0 then redis.call('HSET', STATE, unpack(fields)) end
-- A failed upload may be resumed. A completed one keeps its digests, to recognize duplicates.
if status ~= 'FAILED' then redis.call('UNLINK', PENDING, FILL, TURNS) end
if drop == 1 then
  redis.call('UNLINK', RECEIVED, DIGESTS, PENDING, FILL, TURNS, ETAGS)
  redis.call('HSET', STATE, 'received_chunks', 0, 'uploaded_chunks', 0, 'bytes_uploaded', 0,
    'parts', 0)
end
return { 'ok', begun }
