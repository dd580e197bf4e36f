-- hold: give the parcel to whoever asks; from now on only the new token counts.
--
-- keys   state    hash     token, held_at
-- args   none
-- reply  <the new token>
-- cost   O(1)
-- full   refused
-- uses   clock

local token = redis.call('HINCRBY', STATE, 'token', 1)
redis.call('HSET', STATE, 'held_at', int(now))
return token
