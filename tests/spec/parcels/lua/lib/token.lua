-- token: who holds the parcel now.

local current = tonumber(redis.call('HGET', STATE, 'token') or 0)

local function is_stale(token) return token ~= current end
