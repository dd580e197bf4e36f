-- plain_ends: the short way of completing plain jobs, kept or not.

local ended, unlinks, mean = {}, {}, 0  -- ids; keys to be deleted; how long jobs are worked on, in ms
local kept, shelved = {}, {}            -- key, record, result, is large; time to go, id, ...

-- The map that the data of a plain job gets when the job ends and is kept.
local function end_mark()
  local packed = options.keep > 0 and cmsgpack.pack({ ended = now, gone_at = now + options.keep })
  return packed and struct.pack('<I4', #packed) .. packed
end

local function kept_record(text, at, mark)
  local code = string.byte(text) - LEASED + DONE_CODE
  return string.char(code) .. string.sub(text, 2, at - 1) .. mark .. string.sub(text, at)
end

-- Plan the end of *items*, whose id and token begin at field *first*. False if one is not so simple.
local function end_plain(items, first)
  local names, once, mark = { '' }, {}, end_mark()
  for i = 1, #items do names[i] = JOB .. items[i][first] end
  local texts = #items > 0 and redis.call('MGET', unpack(names))
  mean = meta.service_ms
  for i = 1, #items do
    local id, text = items[i][first], texts[i]
    if not text or once[id] then return false end
    local fine, code, _, _, token, _, _, at = pcall(struct.unpack, HELD, text)
    local plain = fine and (code == LEASED or code == LEASED + APART)
    if not plain or token ~= items[i][first + 1] then return false end
    local took = now - token / 1000  -- a plain job's token is the time of its claim, in µs
    if took < 0 then took = 0 end
    if mean == 0 then mean = took end
    mean = mean + (took - mean) * 0.05
    ended[i], once[id] = id, true
    unlinks[#unlinks + 1] = LOCK .. id
    if mark then
      kept[i] = { names[i], kept_record(text, at, mark), items[i][first + 2], code > APART }
      shelved[2 * i - 1], shelved[2 * i] = now + options.keep, id
    else
      unlinks[#unlinks + 1] = names[i]
      if code > APART then unlinks[#unlinks + 1] = LOAD .. id end
    end
  end
  if #kept > 0 then redis.call('ZCARD', DONE) end  -- it fails here if the key has another type
  return true
end

-- The job's data expires by itself, so a kept job needs one command, and one for each other key.
local function write_kept()
  redis.call('ZADD', DONE, unpack(shelved))
  for i = 1, #kept do
    local id, result = ended[i], kept[i][3]
    redis.call('SET', kept[i][1], kept[i][2], 'PX', options.keep)
    if kept[i][4] then redis.call('PEXPIRE', LOAD .. id, options.keep) end
    if result and result ~= '' then redis.call('SET', RESULT .. id, result, 'PX', options.keep) end
  end
end

-- The first write is to the set that was not read yet. It needs no memory: with memory full, work goes on.
local function write_ends()
  if #ended == 0 then return end
  redis.call('ZREM', LEASES, unpack(ended))
  redis.call('UNLINK', unpack(unlinks))
  if #kept > 0 then write_kept() end
  meta.completed, meta.service_ms = meta.completed + #ended, mean
  event_ids = { 'complete', ended }
end
