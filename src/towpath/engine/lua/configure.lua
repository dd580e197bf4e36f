-- configure: write a queue's options, at its first use or in place of others.
--
-- keys   meta     hash     options, their version, and what was declared last
-- args   whole    text     the decided options, as engines read them; those that only another release knows too
--        options  bytes    packed: those that scripts use
--        version  text     the version of these options
--        over     text     the version that they replace; none = write only if there are no options
--        declared text     the declared value of each option; '' = as before
--        decided  map      the decided options that scripts use, by name, for releases that pack others
--        known    map      every option of the caller's release; stored ones with other names stay in `decided`
-- reply  <the options now in force> <their version> <their declared values> <how they are packed>
-- moves  none
-- cost   O(1)
-- full   refused
-- uses   keys numbers

local whole, packed, version, over, declared, decided, known = unpack(ARGV)
local stored = redis.call('HMGET', META, 'whole', 'version', 'declared', 'options', 'decided')
local last = stored[3] or ''
if stored[2] and over ~= stored[2] then return { stored[1] or '', stored[2], last, stored[4] or '' } end

-- Keep the options that only another release knows: its scripts use them.
local ours, own, others = cmsgpack.unpack(known), cmsgpack.unpack(decided), false
for name, value in pairs(cmsgpack.unpack(stored[5] or '\128')) do
  if not ours[name] then own[name], others = value, true end
end
if others then decided = cmsgpack.pack(own) end
if not stored[2] then
  local numbers = stored_numbers()
  numbers.watched = -1  -- see `publish`
  store_numbers('state', numbers)
end
redis.call('HSET', META, 'whole', whole, 'options', packed, 'version', version, 'decided', decided)
if declared == '' then return { whole, version, last, packed } end
redis.call('HSET', META, 'declared', declared)
return { whole, version, declared, packed }
