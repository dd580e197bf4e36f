-- layout: refuses a queue whose data has another layout: the version of its options begins with that.
-- (A script that is told the version of the caller's options compares the whole of it.)
--
-- uses   keys

do
  local version = redis.call('HGET', META, 'version')
  if version and string.sub(version, 1, #LAYOUT) ~= LAYOUT then
    return redis.error_reply('LAYOUT_DIFFERS ' .. tag)
  end
end
