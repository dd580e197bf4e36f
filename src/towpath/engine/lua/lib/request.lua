-- request: what the caller asks for, unpacked once for the short way and the long one.

local alone = ARGV[6] and { { ARGV[6], ARGV[7] } }  -- see `lone_submit`
local request = not remembered and (alone or cmsgpack.unpack(ARGV[4])) or {}
