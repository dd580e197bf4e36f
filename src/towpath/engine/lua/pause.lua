-- pause: hand out no jobs until resume; everything else goes on.
--
-- keys   meta     hash     paused
-- args   none
-- reply  paused
-- moves  none
-- cost   O(1)
-- full   works
-- uses   keys clock calls meta record notify jobs moves lanes send sets plan close answer_each
-- runs   answer_each(pause)

local function pause()
  set_meta('paused', now)
  return 'paused'
end
