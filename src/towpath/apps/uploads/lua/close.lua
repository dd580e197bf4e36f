-- close: sets the number of chunks. The caller that gets `last` submits the completion.
--
-- keys   state     hash     the published fields, and those of the plan
--        fill      hash     part -> how many of its chunks were received, until it is stored
--        turns     hash     part -> its turn: how often it lost chunks
-- args   total     int      chunks
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
if upload.sized == 1 then
  if upload.total_chunks ~= total then return { 'CHUNK_LAST', upload.total_chunks - 1 } end
else
  if (upload.highest or -1) >= total then return { 'CHUNK_LAST', upload.highest } end
  if upload.short and upload.short ~= total - 1 then return { 'CHUNK_LAST', upload.short } end
  local length = upload.short and tonumber(redis.call('HGET', STATE, 'last_length'))
  upload.sized, upload.total_chunks = 1, total
  upload.total_parts = math.ceil(total / upload.per_part)
  upload.expected_size = total * upload.chunk_size
  if length then upload.expected_size = (total - 1) * upload.chunk_size + length end
end

local size = int(upload.expected_size)
redis.call('HSET', STATE, 'sized', 1, 'is_last_received', 'true', 'total_chunks', int(total),
  'total_parts', int(upload.total_parts), 'expected_size', size, 'updated_at', int(now))
if upload.parts == upload.total_parts then
  redis.call('HSET', STATE, 'status', 'COMPLETING')
  return { 'last', size, upload.generation }
end
local part = upload.total_parts - 1
local whole = tonumber(redis.call('HGET', FILL, part) or -1) == chunks_of(part)
local turn = whole and tonumber(redis.call('HGET', TURNS, part) or 0) or -1
return { 'closed', size, upload.generation, part, turn }
