-- size: sets the size of an upload. The caller that gets `last` submits the completion.
--
-- keys   state     hash     the published fields, and those of the plan
--        fill      hash     part -> how many of its chunks were received, until it is stored
--        turns     hash     part -> its turn: how often it lost chunks
-- args   size      int      bytes
-- reply  closed <size> <generation> <last part> <its turn if it is whole, else -1>
--        last <size> <generation>
--        UPLOAD_UNKNOWN
--        UPLOAD_NOT_OPEN <status>
--        CHUNK_LAST <number>
-- cost   O(1)
-- full   works
-- uses   clock upload

if not upload.status then return { 'UPLOAD_UNKNOWN' } end
if not OPEN[upload.status] then return { 'UPLOAD_NOT_OPEN', upload.status } end
local total = math.ceil(size / upload.chunk_size)
if upload.sized == 1 then
  if upload.expected_size ~= size then return { 'CHUNK_LAST', upload.total_chunks - 1 } end
elseif (upload.highest or -1) >= total or upload.short then
  return { 'CHUNK_LAST', upload.highest or -1 }
end

upload.sized, upload.total_chunks = 1, total
upload.total_parts = math.ceil(total / upload.per_part)
redis.call('HSET', STATE, 'sized', 1, 'total_chunks', int(total),
  'total_parts', int(upload.total_parts), 'expected_size', int(size), 'updated_at', int(now))
if upload.parts == upload.total_parts then
  redis.call('HSET', STATE, 'status', 'COMPLETING')
  return { 'last', int(size), upload.generation }
end
local part = upload.total_parts - 1
local whole = tonumber(redis.call('HGET', FILL, part) or -1) == chunks_of(part)
local turn = whole and tonumber(redis.call('HGET', TURNS, part) or 0) or -1
return { 'closed', int(size), upload.generation, part, turn }
