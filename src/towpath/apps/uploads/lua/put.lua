-- put: a chunk has come whole: its bytes are staged under the token. It counts from now on.
--
-- keys   state     hash     the document's fields, and those of the plan
--        metadata  hash     name, connector_id, parent_id, path, custom_metadata, client_node_id
--        received  string   a bit per chunk that is here or in the store
--        digests   hash     chunk -> its CRC-64/NVME
--        pending   hash     chunk -> the token its bytes came under, until its part is stored
--        fill      hash     part -> how many of its chunks are here
--        turns     hash     part -> how often it was begun anew
--        etags     hash     part -> ETag, size and checksum, as the store answered
-- args   number    int      which chunk
--        length    int      bytes
--        digest    bytes    its CRC-64/NVME; empty = nobody reckoned it
--        token     text     under which the bytes are staged
--        last      int      1 = the client says that it is the last one
--        most      int      chunk numbers are below this
--        expiry    int      ms
-- reply  new <status> <received> <part> <turn of the part if it is whole, else -1> <generation>
--        duplicate <status> <received> <part> <turn, as above> <generation> <token>
--        UPLOAD_UNKNOWN
--        UPLOAD_NOT_OPEN <status>
--        CHUNK_DIFFERS
--        CHUNK_BEYOND
--        CHUNK_LENGTH
--        CHUNK_LAST <number>
-- cost   O(1)
-- full   refused
-- uses   clock upload chunks

if not upload.status then return { 'UPLOAD_UNKNOWN' } end
local part = math.floor(number / upload.per_part)
local known = redis.call('HGET', DIGESTS, number)
if known and digest ~= '' and known ~= digest then return { 'CHUNK_DIFFERS' } end
if redis.call('GETBIT', RECEIVED, number) == 1 then
  local count = redis.call('HGET', STATE, 'received_chunks')
  local before = redis.call('HGET', PENDING, number) or ''
  return { 'duplicate', upload.status, count, part, whole_turn(part), upload.generation, before }
end
if not OPEN[upload.status] then return { 'UPLOAD_NOT_OPEN', upload.status } end
local refusal = misfit(number, length, last, most)
if refusal then return refusal end

redis.call('SETBIT', RECEIVED, number, 1)
if digest ~= '' then redis.call('HSET', DIGESTS, number, digest) end
redis.call('HSET', PENDING, number, token)
redis.call('HINCRBY', FILL, part, 1)
redis.call('HSET', STATE, 'status', 'UPLOADING', 'updated_at', int(now))
if number > (upload.highest or -1) then redis.call('HSET', STATE, 'highest', number) end
if (upload.highest or -1) < 0 then redis.call('HSET', STATE, 'first_chunk_at', int(now)) end
if last == 1 or upload.sized == 1 and number == upload.total_chunks - 1 then
  redis.call('HSET', STATE, 'is_last_received', 'true')
end
if length < upload.chunk_size then
  redis.call('HSET', STATE, 'short', number, 'last_length', length)
end
redis.call('PEXPIRE', STATE, expiry)
redis.call('PEXPIRE', METADATA, expiry)
redis.call('PEXPIRE', RECEIVED, expiry)
redis.call('PEXPIRE', DIGESTS, expiry)
redis.call('PEXPIRE', PENDING, expiry)
redis.call('PEXPIRE', FILL, expiry)
redis.call('PEXPIRE', TURNS, expiry)
redis.call('PEXPIRE', ETAGS, expiry)
local count = redis.call('HINCRBY', STATE, 'received_chunks', 1)
return { 'new', 'UPLOADING', int(count), part, whole_turn(part), upload.generation }
