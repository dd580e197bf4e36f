-- plain_complete: the short way of a complete. If the call is not that simple, this changes nothing,
-- and `complete` starts again.
--
-- uses   keys clock calls request queue head publish plain_close plain_ends

if not remembered then
  local answers = { '' }
  if now - meta.minute < MINUTE_MS and end_plain(request, 1) then
    for i = 1, #request do answers[i] = 'done' end
    write_ends()
    return close_plain(false, answers, answers)
  end
end
