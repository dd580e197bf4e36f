-- keys: the name of every key, built from the tag of the one key that is declared.
-- keys.py spells the same names; a test compares the two.

local tag = string.match(KEYS[1], '^%b{}')

local QUEUE, RETRY = tag .. ':queue', tag .. ':retry:queue'
local LEASES, WAITING = tag .. ':leases', tag .. ':waiting'
local DEAD, DONE, SEEN = tag .. ':dead', tag .. ':done', tag .. ':seen'
local LANES, META = tag .. ':lanes', tag .. ':meta'
local EVENTS, WAKE = tag .. ':events', tag .. ':wake'

local function JOB(id) return tag .. ':job:' .. id end
local function LOAD(id) return tag .. ':load:' .. id end
local function LOCK(id) return tag .. ':lock:' .. id end
local function LANE(name) return tag .. ':lane:' .. name end
local function CALL(channel) return tag .. ':call:' .. channel end
