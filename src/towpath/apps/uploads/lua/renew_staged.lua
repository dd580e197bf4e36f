-- renew_staged: renews the expiry of staged bytes whose bodies still arrive.
--
-- keys   staging:  string   by staging token: bytes of a chunk that are not placed yet
-- args   tokens    list     staging tokens
--        expiry    int      ms
-- stored stay              its calls are remembered under this name, as in earlier releases
-- reply  ok
-- cost   O(tokens)
-- full   works

for _, token in ipairs(tokens) do redis.call('PEXPIRE', STAGING .. token, expiry) end
return 'ok'
