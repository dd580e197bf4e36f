-- delay: publish since when a review task waits.
--
-- keys   record   hash     review_delay_<id>: found_at, pr_number, status
-- args   found_at text     when the issue first needed a review, ISO 8601
--        pr_number text     the pull request; '' = none is known
--        review_status text PENDING or READY_FOR_ASSIGNMENT
--        expiry   int      how long it is kept, ms
-- reply  ok
-- cost   O(1)
-- full   refused

redis.call('HSET', RECORD, 'found_at', found_at, 'pr_number', pr_number, 'status', review_status)
redis.call('PEXPIRE', RECORD, expiry)
return 'ok'
