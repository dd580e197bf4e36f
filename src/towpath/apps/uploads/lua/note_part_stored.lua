-- note_part_stored: notes that a part is stored. The caller that gets `last` submits the completion.
--
-- keys   state     hash     the published fields, and those of the plan
--        pending   hash     chunk -> its staging token, until its part is stored
--        fill      hash     part -> how many of its chunks were received, until it is stored
--        turns     hash     part -> its turn: how often it lost chunks
--        etags     hash     part -> ETag, size and checksum, from the object store
-- args   generation int     that the caller works for
--        part      int      which part
--        turn      int      that the caller works for
--        entry     text     ETag, size and checksum
--        size      int      bytes
-- stored commit            its calls are remembered under this name, as in earlier releases
-- reply  more
--        last
--        UPLOAD_UNKNOWN
--        UPLOAD_NOT_OPEN <status>
--        PART_STALE
-- cost   O(chunks of the part)
-- full   works
-- uses   clock upload

if not upload.status then return { 'UPLOAD_UNKNOWN' } end
if upload.generation ~= generation then return { 'PART_STALE' } end
if redis.call('HEXISTS', ETAGS, part) == 1 then
  return { upload.sized == 1 and upload.parts == upload.total_parts and 'last' or 'more' }
end
if not OPEN[upload.status] then return { 'UPLOAD_NOT_OPEN', upload.status } end
if tonumber(redis.call('HGET', TURNS, part) or 0) ~= turn then return { 'PART_STALE' } end

local first, count = part * upload.per_part, chunks_of(part)
redis.call('HSET', ETAGS, part, entry)
for number = first, first + count - 1 do redis.call('HDEL', PENDING, number) end
redis.call('HDEL', FILL, part)
redis.call('HINCRBY', STATE, 'uploaded_chunks', count)
redis.call('HINCRBY', STATE, 'bytes_uploaded', size)
redis.call('HSET', STATE, 'updated_at', int(now))
local parts = redis.call('HINCRBY', STATE, 'parts', 1)
redis.call('PEXPIRE', ETAGS, redis.call('PTTL', STATE))
if upload.sized ~= 1 or parts ~= upload.total_parts then return { 'more' } end
redis.call('HSET', STATE, 'status', 'COMPLETING')
return { 'last' }
