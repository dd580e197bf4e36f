-- plain_exchange: the short way of an exchange that completes only. If the call is not that simple,
-- this changes nothing, and `exchange` starts again.
--
-- uses   keys clock calls request queue head publish plain_close plain_ends plain_leases plain_leased

if not remembered then
  local settle, wish = request[1], request[2]
  local answers, plain, claims = {}, true, wish[3] > 0
  for i = 1, #settle do
    plain = plain and settle[i][1] == 'complete'
    answers[i] = 'done'
  end
  plain = plain and (claims or #settle > 0)
  if plain and (not claims or lease_plain(unpack(wish))) and end_plain(settle, 2) then
    write_ends()
    if claims then write_leases(wish[1]) end
    return close_plain(wake, { answers, leases, due, left, now }, { answers, memory })
  end
end
