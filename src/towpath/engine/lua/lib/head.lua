-- head: how a job's data begins. The first byte is the state's code, with marks of the parts that
-- follow: the last lease, a map of what is not plain, and the payload unless it is large. A plain job
-- that waits takes 10 bytes and its payload.

local SMALL = 256               -- most bytes of a payload that is inside the job's data
local START = '<BI6I3'          -- code, tick, how far the tick is ahead of the time of submission
local LAST_LEASE = '<I7I4s'     -- token, attempts, worker
local HELD = '<BI6I3I7I4s'      -- both
local WAS_LEASED, NOT_PLAIN, APART = 8, 16, 32  -- added to the code; apart = the payload has its own key
local READY, LEASED, DONE_CODE = 1, 12, 29      -- of a plain job that waits, is leased, is kept
local AHEAD_MOST = 2^24 - 1     -- ms; if it is further, the map has the time of submission
