-- put: counts chunks that were received whole and whose bytes are staged.
--
-- keys   state     hash     the published fields, and those of the plan
--        metadata  hash     name, connector_id, parent_id, path, custom_metadata, client_node_id
--        received  string   a bit per chunk that is in Redis or stored
--        digests   hash     chunk -> its CRC-64/NVME
--        pending   hash     chunk -> its staging token, until its part is stored
--        fill      hash     part -> how many of its chunks were received, until it is stored
--        turns     hash     part -> its turn: how often it lost chunks
--        etags     hash     part -> ETag, size and checksum, from the object store
-- args   items     list     number, length in bytes, CRC-64/NVME or empty, token or empty, …
--        last      int      1 = by the client, the last of them is the file's last one
--        most      int      chunk numbers are below this
--        expiry    int      ms
-- reply  for each chunk, up to the first one that is refused:
--        new <status> <received> <part> <turn of the part if it is whole, else -1> <generation>
--        duplicate <status> <received> <part> <turn, as above> <generation> <staging token>
--        UPLOAD_UNKNOWN
--        UPLOAD_NOT_OPEN <status>
--        CHUNK_DIFFERS
--        CHUNK_LOST
--        CHUNK_BEYOND
--        CHUNK_LENGTH
--        CHUNK_LAST <number>
-- cost   O(chunks)
-- full   refused
-- uses   clock upload chunks lifetime

if not upload.status then return { { 'UPLOAD_UNKNOWN' } } end

local changed = false
local function put(number, length, digest, token, is_last)
  local part = math.floor(number / upload.per_part)
  local known = redis.call('HGET', DIGESTS, number)
  if known and digest ~= '' and known ~= digest then return { 'CHUNK_DIFFERS' } end
  if redis.call('GETBIT', RECEIVED, number) == 1 then
    local count = redis.call('HGET', STATE, 'received_chunks')
    local before = redis.call('HGET', PENDING, number) or ''
    return { 'duplicate', upload.status, count, part, whole_turn(part), upload.generation, before }
  end
  if not OPEN[upload.status] then return { 'UPLOAD_NOT_OPEN', upload.status } end
  local refusal = misfit(number, length, is_last, most)
  if refusal then return refusal end
  -- The chunk existed when the request began and was lost since; the client must send it again.
  if token == '' then return { 'CHUNK_LOST' } end

  redis.call('SETBIT', RECEIVED, number, 1)
  if digest ~= '' then redis.call('HSET', DIGESTS, number, digest) end
  redis.call('HSET', PENDING, number, token)
  redis.call('HINCRBY', FILL, part, 1)
  redis.call('HSET', STATE, 'status', 'UPLOADING', 'updated_at', int(now))
  if (upload.highest or -1) < 0 then redis.call('HSET', STATE, 'first_chunk_at', int(now)) end
  if number > (upload.highest or -1) then
    redis.call('HSET', STATE, 'highest', number)
    upload.highest = number
  end
  if is_last == 1 or upload.sized == 1 and number == upload.total_chunks - 1 then
    redis.call('HSET', STATE, 'is_last_received', 'true')
  end
  if length < upload.chunk_size then
    redis.call('HSET', STATE, 'short', number, 'last_length', length)
    upload.short = number
  end
  upload.status, changed = 'UPLOADING', true
  local count = redis.call('HINCRBY', STATE, 'received_chunks', 1)
  return { 'new', 'UPLOADING', int(count), part, whole_turn(part), upload.generation }
end

local replies = {}
for i = 1, #items, 4 do
  local is_last = i + 4 > #items and last or 0
  replies[#replies + 1] = put(items[i], items[i + 1], items[i + 2], items[i + 3], is_last)
  local word = replies[#replies][1]
  if word ~= 'new' and word ~= 'duplicate' then break end
end
if changed then renew(expiry) end
return replies
