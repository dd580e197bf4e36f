-- plain_ends: the short way of completing plain jobs that are not kept.

local ended, unlinks, mean = {}, {}, 0  -- ids; their keys; how long jobs are worked on, in ms

-- Plan the end of *items*, whose id and token begin at field *first*. False if there is more to it.
local function end_plain(items, first)
  if options.keep > 0 then return false end
  local names, once = { '' }, {}
  for i = 1, #items do names[i] = JOB .. items[i][first] end
  local texts = #items > 0 and redis.call('MGET', unpack(names))
  mean = meta.service_ms
  for i = 1, #items do
    local id, text = items[i][first], texts[i]
    if not text or once[id] then return false end
    local fine, code, _, _, token, _, _, rest = pcall(struct.unpack, HEAD, text)
    local plain = fine and code == LEASED and rest > #text
    if not plain or token ~= items[i][first + 1] then return false end
    local took = now - token / 1000  -- a plain job's token is the time of its claim, in µs
    if took < 0 then took = 0 end
    if mean == 0 then mean = took end
    mean = mean + (took - mean) * 0.05
    ended[i], once[id] = id, true
    unlinks[3 * i - 2], unlinks[3 * i - 1], unlinks[3 * i] = names[i], LOAD .. id, LOCK .. id
  end
  return true
end

-- The set is the only key here that could have a wrong type, so it comes first.
local function write_ends()
  if #ended == 0 then return end
  redis.call('ZREM', LEASES, unpack(ended))
  redis.call('UNLINK', unpack(unlinks))
  fields = { 'completed', meta.completed + #ended, 'service_ms', mean }
  told = { 'complete', table.concat(ended, '\n') }
end
