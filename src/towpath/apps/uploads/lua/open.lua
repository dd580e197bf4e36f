-- open: creates the state of an upload from its row and from the stored parts.
--
-- keys   state     hash     the published fields, and those of the plan
--        metadata  hash     name, connector_id, parent_id, path, custom_metadata, client_node_id
--        received  string   a bit per chunk that is in Redis or stored
--        digests   hash     chunk -> its CRC-64/NVME
--        pending   hash     chunk -> its staging token, until its part is stored
--        fill      hash     part -> how many of its chunks were received, until it is stored
--        turns     hash     part -> its turn: how often it lost chunks
--        etags     hash     part -> ETag, size and checksum, from the object store
-- args   generation int     of the row
--        fields    list     of the state: name, value, …
--        facts     list     of the metadata: name, value, …
--        bits      bytes    a bit per chunk that is stored
--        parts     list     of stored parts: part, entry, …
--        known     list     of stored chunks: chunk, digest, …
--        expiry    int      ms
-- reply  opened
--        there
-- cost   O(parts)
-- full   refused

local before = tonumber(redis.call('HGET', STATE, 'generation') or -1)
if before >= generation then return 'there' end

redis.call('UNLINK', STATE, METADATA, RECEIVED, DIGESTS, PENDING, FILL, TURNS, ETAGS)
redis.call('HSET', STATE, unpack(fields))
redis.call('HSET', METADATA, unpack(facts))
if bits ~= '' then redis.call('SET', RECEIVED, bits, 'PX', expiry) end
for i = 1, #parts, 2 do redis.call('HSET', ETAGS, parts[i], parts[i + 1]) end
for i = 1, #known, 2 do redis.call('HSET', DIGESTS, known[i], known[i + 1]) end
redis.call('PEXPIRE', STATE, expiry)
redis.call('PEXPIRE', DIGESTS, expiry)
redis.call('PEXPIRE', METADATA, expiry)
redis.call('PEXPIRE', ETAGS, expiry)
return 'opened'
