-- request: what the caller asks for, unpacked once for the short way and the long one.

local request = not remembered and cmsgpack.unpack(ARGV[4]) or {}
