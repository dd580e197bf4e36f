-- resume: hand out jobs again after pause.
--
-- keys   meta     hash     paused
-- args   none
-- reply  resumed
-- moves  none
-- cost   O(1)
-- full   works
-- uses   keys clock calls meta record tell jobs moves lanes send sets plan close each
-- runs   each(resume)

local function resume()
  set_meta('paused', 0)
  wanted = true
  return 'resumed'
end
