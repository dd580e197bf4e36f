-- pause: hand out no jobs until resume; everything else goes on.
--
-- keys   meta     hash     paused
-- args   none
-- reply  paused
-- moves  none
-- cost   O(1)
-- full   works
-- uses   keys clock calls meta record tell jobs moves lanes send sets plan close each
-- runs   each(pause)

local function pause()
  set_meta('paused', now)
  return 'paused'
end
