-- begin: this server was told of all issues.
--
-- keys   told     string   there = it was told, and has not lost it since
-- args   none
-- reply  ok
-- cost   O(1)
-- full   refused

redis.call('SET', TOLD, '1')
return 'ok'
