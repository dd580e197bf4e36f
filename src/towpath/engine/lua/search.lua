-- search: dead jobs whose reason has a text in it, the newest first.
--
-- keys   dead     zset     dead ids by time of death
--        job      string   the jobs' data
-- args   clock    ms       '' = Redis's clock
--        text     text     in small letters
--        looked   int      so many of the newest were looked at before
--        count    int      look at so many
-- reply  <id, score, data> of each that has it; <looked at>; <now>
-- moves  none
-- cost   O(count + log n)
-- full   works
-- uses   keys layout clock record answer

local text, looked, count = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local found = redis.call('ZRANGE', DEAD, -(looked + count), -(looked + 1), 'WITHSCORES')
local page, bytes, seen = {}, 0, 0
for i = #found - 1, 1, -2 do
  local record = redis.call('GET', JOB .. found[i]) or ''
  local reason = decode(found[i], record).reason
  if reason and string.find(string.lower(reason), text, 1, true) then
    record = without_payload(record)
    bytes = bytes + #record
    if bytes > ANSWER_BYTES and #page > 0 then break end
    page[#page + 1] = { found[i], found[i + 1], record }
  end
  seen = seen + 1
end
return { page, seen, now }
