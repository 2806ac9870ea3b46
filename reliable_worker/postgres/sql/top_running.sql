-- The jobs that have been running longest, for `top`.
--
-- $1 limit int
-- Rows: id, kind, queue, attempts, owner, held_seconds float8, lease_seconds float8 (left).
SELECT j.id, j.kind, j.queue, j.attempts, j.lease_owner AS owner,
       extract(epoch FROM clock_timestamp() - j.claimed_at)::float8 AS held_seconds,
       extract(epoch FROM j.lease_until - clock_timestamp())::float8 AS lease_seconds
FROM jobs AS j
WHERE j.state = 'running'
ORDER BY j.claimed_at
LIMIT $1::int
