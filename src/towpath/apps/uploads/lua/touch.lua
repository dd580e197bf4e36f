-- touch: the upload was heard of, and a part of it is begun, though no chunk of that came whole.
--
-- keys   state     hash     the document's fields, and those of the plan
--        metadata  hash     name, connector_id, parent_id, path, custom_metadata, client_node_id
--        received  string   a bit per chunk that is here or in the store
--        digests   hash     chunk -> its CRC-64/NVME
--        pending   hash     chunk -> the token its bytes came under, until its part is stored
--        fill      hash     part -> how many of its chunks are here
--        turns     hash     part -> how often it was begun anew
--        etags     hash     part -> ETag, size and checksum, as the store answered
-- args   part      int      that is begun
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
