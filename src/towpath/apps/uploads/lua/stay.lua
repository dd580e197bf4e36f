-- stay: what was staged of bodies that still come stays for longer.
--
-- keys   staging:  string   by token: what has come of a chunk
-- args   tokens    list     under which it comes
--        expiry    int      ms
-- reply  ok
-- cost   O(tokens)
-- full   works

for _, token in ipairs(tokens) do redis.call('PEXPIRE', STAGING .. token, expiry) end
return 'ok'
