-- look: all that is known of an upload, but for what is known of its chunks.
--
-- keys   state     hash     the document's fields, and those of the plan
--        metadata  hash     name, connector_id, parent_id, path, custom_metadata, client_node_id
-- args   none
-- reply  <fields of the state> <fields of the metadata>
-- cost   O(fields)
-- full   works

return { redis.call('HGETALL', STATE), redis.call('HGETALL', METADATA) }
