-- fields: the state and the metadata of an upload, without its chunks and parts.
--
-- keys   state     hash     the published fields, and those of the plan
--        metadata  hash     name, connector_id, parent_id, path, custom_metadata, client_node_id
-- args   none
-- reply  <fields of the state> <fields of the metadata>
-- cost   O(fields)
-- full   works

return { redis.call('HGETALL', STATE), redis.call('HGETALL', METADATA) }
