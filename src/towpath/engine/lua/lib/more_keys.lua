-- more_keys: the names of keys that plain jobs do not need. keys.py spells the same names.
--
-- uses   keys

local SELECTOR, WAKES = tag .. ':selector:', tag .. ':wakes:'  -- .. selector
local HELD, ASKED = tag .. ':held:', tag .. ':asked'           -- .. worker
local GROUP, GROUPS = tag .. ':group:', tag .. ':groups'       -- .. group
local HISTORY = tag .. ':history'
