-- layout: refuses a queue whose data has another layout, with which the version of its options begins.
-- (A script that gets the version of the caller's options compares all of it instead.)
--
-- uses   keys

do
  local version = redis.call('HGET', META, 'version')
  if version and string.sub(version, 1, #LAYOUT) ~= LAYOUT then
    return redis.error_reply('LAYOUT_DIFFERS ' .. tag)
  end
end
