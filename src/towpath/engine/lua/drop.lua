-- drop: let a parked lane go on without its dead head.
--
-- keys   lanes    hash     lane -> its holder
--        lane     zset     ids waiting behind it
--        waiting  zset     the same, all lanes
--        queue    zset     ready ids
--        job      string   the data of both jobs
-- args   lane     text
-- reply  dropped <id>
--        LANE_NOT_PARKED
-- moves  waiting -> ready, waiting -> delayed
-- cost   O(log n)
-- full   works
-- uses   keys clock calls meta record notify jobs moves lanes send sets plan close answer_each
-- runs   answer_each(drop)

local function drop(lane)
  local parked = read_lane(lane)
  local holder = parked.holder and read_job(parked.holder)
  if not holder or holder.state ~= 'dead' then return { 'LANE_NOT_PARKED' } end
  note('drop', holder.id)
  advance_lane(parked)
  return { 'dropped', holder.record or holder.id }
end
