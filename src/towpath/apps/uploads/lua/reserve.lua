-- reserve: reserves room for a body of a part, for the time of a lease; a repeat renews the lease.
--
-- keys   reserved  zset     parts by the time when their reservation ends, ms
--        sizes     hash     part -> counted bytes, and holder
--        parts     hash     part -> floor, own, extent and number of bodies (`lib/holdings`)
--        shares    hash     holder -> counted bytes
--        total     string   counted bytes of all parts
--        leases    zset     bodies by the time when their lease ends, ms
--        bodies    hash     body -> its bytes, how long they stay (ms), its part
--        drained   hash     all, or a holder -> when room was freed last, and how much lately
--        unsure    set      parts whose bytes must be counted, as a server died
--        wanted    hash     all, or a holder -> refused bytes; holders that must yield to others
-- args   member    text     which part of which upload
--        lease     text     which body
--        holder    text     whose share it counts for
--        extent    int      bytes of the part, as far as this body needs it
--        own       int      bytes that the body may bring
--        stays     int      ms for which its received bytes stay if its server dies; 0 = none stay
--        most      int      maximum bytes of all parts
--        begun     int      bytes of these that only parts which have begun may use
--        share     int      maximum bytes of one holder
--        expiry    int      ms
--        lacked    int      bytes that were lacking before room was taken back for this body
-- reply  ok
--        BUDGET_FULL <ms until there may be room> <bytes that are lacking>
--        SHARE_FULL <ms until there may be room> <bytes that are lacking>
-- cost   O(log parts)
-- full   refused
-- uses   clock holdings

release_late()
if redis.call('ZSCORE', LEASES, lease) then
  redis.call('ZADD', LEASES, now + expiry, lease)
  redis.call('ZADD', RESERVED, 'XX', 'GT', now + expiry, member)
  return { 'ok' }
end

local part = look(member)
local limit = part.size > 0 and most or most - begun
part.holder = part.holder or holder
part.extent = math.max(part.extent, extent)
part.own, part.bodies = part.own + own, part.bodies + 1
local more = math.max(part.extent, part.floor + part.own) - part.size

-- The wait is computed from reservations that end soon, and from the rate at which room was freed
-- lately. It is at least the time since room was freed last.
local function refuse(word, field, lack, of)
  redis.call('HSET', WANTED, field, int(lack))
  redis.call('PEXPIRE', WANTED, LONGEST)
  local due, freed = LONGEST, 0
  local soon = redis.call('ZRANGEBYSCORE', RESERVED, '-inf', int(now + LONGEST), 'WITHSCORES',
    'LIMIT', 0, 100)
  for i = 1, #soon, 2 do
    local other = look(soon[i])
    if not of or other.holder == of then freed = freed + other.size end
    if freed >= lack then
      due = soon[i + 1] - now
      break
    end
  end
  local at, amount = string.match(redis.call('HGET', DRAINED, field) or '', '^(%d+) (%d+)$')
  local quiet = at and now - at or 0
  local rate = (amount or 0) * math.exp(-quiet / STEADY) / STEADY
  local wait = rate > 0 and math.max(quiet, lack / rate) or quiet
  return { word, int(math.ceil(math.max(math.min(wait, due), 1000))), int(lack) }
end

local used = tonumber(redis.call('HGET', SHARES, part.holder) or 0)
if more > 0 and used + more > share then
  return refuse('SHARE_FULL', 'of ' .. part.holder, used + more - share, part.holder)
end
local total = tonumber(redis.call('GET', TOTAL) or 0)
local yields = redis.call('HGET', WANTED, 'after ' .. part.holder) or ''
local late, others = string.match(yields, '^(%d+) (%d+)$')
if late and part.size == 0 and tonumber(late) > now and total + more > limit - others then
  return { 'BUDGET_FULL', int(math.max(late - now, 1000)), int(total + more - limit + others) }
end
if more > 0 and total + more > limit then
  return refuse('BUDGET_FULL', 'all', total + more - limit)
end

count(part)
-- If no room was freed yet, the wait counts from this reservation on.
for _, field in ipairs({ 'all', 'of ' .. part.holder }) do
  redis.call('HSETNX', DRAINED, field, int(now) .. ' 0')
  -- This body has room now, so no slow body must give way to it.
  if lacked > 0 and redis.call('HGET', WANTED, field) == int(lacked) then
    redis.call('HDEL', WANTED, field)
  end
end
redis.call('HSET', BODIES, lease, int(own) .. ' ' .. int(stays) .. ' ' .. member)
redis.call('ZADD', LEASES, now + expiry, lease)
redis.call('ZADD', RESERVED, 'GT', now + expiry, member)
return { 'ok' }
