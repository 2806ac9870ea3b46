-- Running jobs whose lease ran out long ago and whom nobody took back.
--
-- $1 seconds float8: since when · $2 limit int: count no further
-- One row: stuck bigint, first bigint (one of their ids, null for none). Called by `doctor`.
SELECT count(*) AS stuck, min(s.id) AS first
FROM (
    SELECT j.id
    FROM jobs AS j
    WHERE j.state = 'running'
      AND j.lease_until < now() - $1::float8 * interval '1 second'
    ORDER BY j.claimed_at
    LIMIT $2::int
) AS s
