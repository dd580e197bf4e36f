-- layout: refuses to read a queue whose data has another layout: the version of its options begins with that.
-- (A script that writes compares the whole version with the caller's.)
--
-- uses   keys

do
  local version = redis.call('HGET', META, 'version')
  if version and string.sub(version, 1, #LAYOUT) ~= LAYOUT then
    return redis.error_reply('LAYOUT_DIFFERS ' .. tag)
  end
end
