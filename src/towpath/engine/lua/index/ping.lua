-- ping: whether the server runs scripts at all.
--
-- keys   none
-- args   none
-- reply  1
-- cost   O(1)
-- full   works

return 1
