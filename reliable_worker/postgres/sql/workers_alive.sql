-- The worker processes that said a word in the last $1 seconds.
--
-- $1 float8
-- Rows: boot, host, pid, role, slots, kinds text[], queues text[], started_at (without zone, in
-- UTC), seen_seconds float8 (since its last word). Called by `jobs explain`, `doctor` and `top`.
SELECT w.boot, w.host, w.pid, w.role, w.slots, w.kinds, w.queues,
       w.started_at AT TIME ZONE 'UTC' AS started_at,
       extract(epoch FROM clock_timestamp() - w.seen_at)::float8 AS seen_seconds
FROM worker_processes AS w
WHERE w.seen_at > now() - $1::float8 * interval '1 second'
ORDER BY w.host, w.pid
