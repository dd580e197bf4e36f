-- plain_claim: the short way of a claim. If the call is not that simple, this changes nothing, and
-- `claim` starts again.
--
-- uses   keys clock calls request queue head publish plain_close plain_leases plain_leased

if not remembered then
  if lease_plain(unpack(request)) then
    write_leases(request[1])
    return close_plain(wake, { leases, due, left, now }, memory)
  end
end
