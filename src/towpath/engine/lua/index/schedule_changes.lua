-- schedule_changes: which queues have stored schedules, for processes that fire them.
--
-- keys   index    hash     queue -> begun or done, its last change, how many are stored; * -> the last change of all
-- args   known    text     the last change that the caller knows of
-- reply  <last change> <now> <queue, entry, ...; nothing if no other change came>
-- stored changes          the name under which its calls are remembered, as by earlier releases
-- cost   O(1); O(queues that have schedules) after a change
-- full   works
-- uses   clock

local last = redis.call('HGET', INDEX, '*') or ''
return { last, now, last ~= known and redis.call('HGETALL', INDEX) or {} }
