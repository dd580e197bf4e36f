-- plain_complete: the short way of a complete. If it is not that simple, nothing has been done,
-- and `complete` begins anew.
--
-- uses   keys clock calls queue head publish plain_close plain_ends

if not remembered then
  local items, answers = cmsgpack.unpack(ARGV[4]), { '' }
  if end_plain(items, 1) then
    for i = 1, #items do answers[i] = 'done' end
    write_ends()
    return close_plain(false, answers, answers)
  end
end
