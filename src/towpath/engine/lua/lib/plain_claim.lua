-- plain_claim: the short way of a claim. If it is not that simple, nothing has been done, and
-- `claim` begins anew.
--
-- uses   keys clock calls queue head publish plain_close plain_leases

if not remembered then
  local wish = cmsgpack.unpack(ARGV[4])
  if lease_plain(unpack(wish)) then
    write_leases(wish[1])
    return close_plain(wake, { leases, due, left, now }, memory)
  end
end
