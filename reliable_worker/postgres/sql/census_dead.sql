-- census_dead: per queue, the dead jobs.
-- Called by maintenance/census.py on a timer. A loose scan of jobs_dead_idx finds the queues (at
-- most 1,000), each counted up to $1.
-- $1 int: count no further, per queue
-- Rows: queue, dead bigint
WITH RECURSIVE queues AS (
    (
        SELECT queue, 1 AS step
        FROM jobs
        WHERE state = 'dead'
        ORDER BY queue
        LIMIT 1
    )
    UNION ALL
    SELECT next.queue, queues.step + 1
    FROM queues
    CROSS JOIN LATERAL (
        SELECT jobs.queue
        FROM jobs
        WHERE jobs.state = 'dead' AND jobs.queue > queues.queue
        ORDER BY jobs.queue
        LIMIT 1
    ) AS next
    WHERE queues.step < 1000
)

SELECT
    queues.queue,
    (
        SELECT count(*) FROM (
            SELECT FROM jobs
            WHERE jobs.state = 'dead' AND jobs.queue = queues.queue
            ORDER BY jobs.id
            LIMIT $1::int
        ) AS counted
    ) AS dead
FROM queues
