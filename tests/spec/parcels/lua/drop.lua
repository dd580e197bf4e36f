-- drop: remove one piece, to make room.
--
-- keys   state    hash     pieces
--        pieces:  string   by number
-- args   number   int      which piece
-- reply  <whether it was there>
-- cost   O(1)
-- full   works

if redis.call('EXISTS', PIECES .. number) == 0 then return false end
redis.call('HINCRBY', STATE, 'pieces', -1)
redis.call('UNLINK', PIECES .. number)
return 'dropped'
