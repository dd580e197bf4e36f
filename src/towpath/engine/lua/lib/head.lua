-- head: the fixed fields that every record begins with; a plain job has no others.

local HEAD = '<Bdddds'  -- state, submitted at, tick, token, attempts, worker
local READY, LEASED, DONE_CODE = 1, 4, '\5'
