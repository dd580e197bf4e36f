-- touch: notes that the upload is active, and that a part has begun even without a whole chunk.
--
-- keys   state     hash     the published fields, and those of the plan
--        metadata  hash     name, connector_id, parent_id, path, custom_metadata, client_node_id
--        received  string   a bit per chunk that is in Redis or stored
--        digests   hash     chunk -> its CRC-64/NVME
--        pending   hash     chunk -> its staging token, until its part is stored
--        fill      hash     part -> how many of its chunks were received, until it is stored
--        turns     hash     part -> its turn: how often it lost chunks
--        etags     hash     part -> ETag, size and checksum, from the object store
-- args   part      int      that has begun
--        expiry    int      ms
-- reply  ok
-- cost   O(1)
-- full   works
-- uses   clock lifetime

if redis.call('EXISTS', STATE) == 0 then return 'ok' end
redis.call('HSET', STATE, 'updated_at', int(now))
if redis.call('HEXISTS', ETAGS, part) == 0 then redis.call('HSETNX', FILL, part, 0) end
renew(expiry)
return 'ok'
