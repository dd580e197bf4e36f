-- chunks: whether a chunk fits the plan, and whether its part is whole.

-- The turn of a part whose chunks were all received and that is not stored yet; else -1.
local function whole_turn(part)
  if tonumber(redis.call('HGET', FILL, part) or -1) ~= chunks_of(part) then return -1 end
  return tonumber(redis.call('HGET', TURNS, part) or 0)
end

-- The refusal of a chunk that does not fit the plan; nil if it fits.
local function misfit(number, length, last, most)
  if upload.sized == 1 then
    if number >= upload.total_chunks then return { 'CHUNK_BEYOND' } end
    local wanted = math.min(upload.chunk_size, upload.expected_size - number * upload.chunk_size)
    if length ~= wanted then return { 'CHUNK_LENGTH' } end
    if last == 1 and number ~= upload.total_chunks - 1 then
      return { 'CHUNK_LAST', upload.total_chunks - 1 }
    end
    return nil
  end
  if number >= most then return { 'CHUNK_BEYOND' } end
  if length > upload.chunk_size or length < 1 then return { 'CHUNK_LENGTH' } end
  local final = last == 1 or length < upload.chunk_size
  if final and (upload.highest or -1) > number then return { 'CHUNK_LAST', upload.highest } end
  if upload.short and (number > upload.short or final and number ~= upload.short) then
    return { 'CHUNK_LAST', upload.short }
  end
  return nil
end
