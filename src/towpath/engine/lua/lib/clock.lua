-- clock: the time of this call, by Redis's clock; tests may pass one in ms.

local now, now_us
if ARGV[1] == '' then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
  now = math.floor(now_us / 1000)
else
  now = tonumber(ARGV[1])
  now_us = now * 1000
end

-- Whether a token that is given now is also the time of its claim, in µs. It is not if tokens run
-- ahead, because the clock was set back, or because rows of the database have had higher ones.
local function is_time(token) return token - now_us < 1000 end

-- tostring and '..' keep 14 digits of a number: 1794771968716192 would become 1.7947719687162e+15.
-- (A number handed to redis.call or returned is exact: Redis itself writes 17 digits.)
-- %d writes a C long, which has 64 bits on 64-bit servers, in a third of the time of %.0f.
local function int(number) return string.format('%d', number) end
