-- piece: one piece as it was stored.
--
-- keys   pieces:  string   by number
-- args   number   int      which piece
-- reply  <the piece>
--        nothing
-- cost   O(size)
-- full   works

return redis.call('GET', PIECES .. number)
