-- keys: the name of every key, built from the tag of the one key that is declared.
-- keys.py spells the same names; a test compares the two.

local tag = string.match(KEYS[1], '^%b{}')

local QUEUE, RETRY = tag .. ':queue', tag .. ':retry:queue'
local LEASES, WAITING = tag .. ':leases', tag .. ':waiting'
local DEAD, DONE, SEEN = tag .. ':dead', tag .. ':done', tag .. ':seen'
local LANES, META = tag .. ':lanes', tag .. ':meta'
local RECURRING, SCHEDULES = tag .. ':recurring', tag .. ':schedules'
local LOADS = tag .. ':loads'
local EVENTS, WAKE = tag .. ':events', tag .. ':wake'
local JOB, LOAD, LOCK = tag .. ':job:', tag .. ':load:', tag .. ':lock:'   -- .. id
local RESULT = tag .. ':result:'                                           -- .. id
local LANE, CALL = tag .. ':lane:', tag .. ':call:'                        -- .. lane, .. channel
