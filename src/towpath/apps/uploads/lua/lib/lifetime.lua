-- lifetime: renews the expiry of the state of an upload that is active.

local function renew(expiry)
  redis.call('PEXPIRE', STATE, expiry)
  redis.call('PEXPIRE', METADATA, expiry)
  redis.call('PEXPIRE', RECEIVED, expiry)
  redis.call('PEXPIRE', DIGESTS, expiry)
  redis.call('PEXPIRE', PENDING, expiry)
  redis.call('PEXPIRE', FILL, expiry)
  redis.call('PEXPIRE', TURNS, expiry)
  redis.call('PEXPIRE', ETAGS, expiry)
end
