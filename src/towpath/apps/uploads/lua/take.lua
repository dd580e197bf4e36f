-- take: the chunks of a part that is to be stored.
--
-- keys   state     hash     the published fields, and those of the plan
--        pending   hash     chunk -> its staging token, until its part is stored
--        turns     hash     part -> its turn: how often it lost chunks
--        etags     hash     part -> ETag, size and checksum, from the object store
-- args   generation int     that the caller works for
--        part      int      which part
--        turn      int      that the caller works for
-- reply  take <first chunk> <staging token of each, …>
--        stored <whether all parts are> <first chunk> <how many chunks>
--        UPLOAD_UNKNOWN
--        UPLOAD_NOT_OPEN <status>
--        PART_STALE
-- cost   O(chunks of the part)
-- full   works
-- uses   upload

if not upload.status then return { 'UPLOAD_UNKNOWN' } end
if upload.generation ~= generation then return { 'PART_STALE' } end
local first, count = part * upload.per_part, chunks_of(part)
if redis.call('HEXISTS', ETAGS, part) == 1 then
  local all = upload.sized == 1 and upload.parts == upload.total_parts
  return { 'stored', all and 1 or 0, first, count }
end
if not OPEN[upload.status] then return { 'UPLOAD_NOT_OPEN', upload.status } end
if tonumber(redis.call('HGET', TURNS, part) or 0) ~= turn then return { 'PART_STALE' } end

local tokens = {}
for i = 1, count do
  tokens[i] = redis.call('HGET', PENDING, first + i - 1)
  if not tokens[i] then return { 'PART_STALE' } end
end
return { 'take', first, tokens }
