-- upload: reads the state of an upload, and counts the chunks of its parts.

local OPEN = { ['PENDING'] = true, ['UPLOADING'] = true, ['COMPLETING'] = true }

local upload = {}
do
  local names = { 'status', 'generation', 'chunk_size', 'per_part', 'sized', 'total_chunks',
    'total_parts', 'expected_size', 'highest', 'short', 'parts' }
  local values = redis.call('HMGET', STATE, unpack(names))
  for i, name in ipairs(names) do upload[name] = values[i] or nil end
  for i = 2, #names do upload[names[i]] = tonumber(upload[names[i]]) end
end

-- How many chunks a part has; the last one may have fewer.
local function chunks_of(part)
  local first = part * upload.per_part
  if upload.sized ~= 1 then return upload.per_part end
  return math.min(upload.per_part, upload.total_chunks - first)
end
