-- census_running: per queue, the running jobs and those among them whose lease has run out.
-- Called by maintenance/census.py on a timer. Starts at the mark, like every scan of
-- jobs_expired_idx, and counts no further than $2 jobs in all.
-- $1 float8: the mark, a claimed_at in epoch seconds below which nothing runs
-- $2 int: count no further
-- Rows: queue, running bigint, expired bigint
SELECT
    queue,
    count(*) AS running,
    count(*) FILTER (WHERE lease_until < clock_timestamp()) AS expired
FROM (
    SELECT queue, lease_until
    FROM jobs
    WHERE state = 'running' AND claimed_at >= to_timestamp($1::float8)
    ORDER BY claimed_at
    LIMIT $2::int
) AS held
GROUP BY queue
