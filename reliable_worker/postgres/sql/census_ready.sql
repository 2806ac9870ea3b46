-- census_ready: per queue, the ready jobs and how long the oldest of those due has waited.
-- Called by maintenance/census.py on a timer. Bounded: a loose index scan finds the combinations
-- of queue, kind and priority (at most 1,000), each is asked for its first job only, and a queue's
-- jobs are counted up to $1: in the order of the index, so that the count stops at the limit
-- instead of collecting the whole queue first.
-- $1 int: count no further, per queue and index
-- Rows: queue, ready bigint (scheduled ones included), oldest_age_seconds float8 (0: none due)
WITH RECURSIVE claimable AS (
    (
        SELECT queue, kind, priority, 1 AS step
        FROM jobs
        WHERE state = 'ready' AND crashes = 0
        ORDER BY queue, kind, priority
        LIMIT 1
    )
    UNION ALL
    SELECT next.queue, next.kind, next.priority, claimable.step + 1
    FROM claimable
    CROSS JOIN LATERAL (
        SELECT jobs.queue, jobs.kind, jobs.priority
        FROM jobs
        WHERE jobs.state = 'ready'
            AND jobs.crashes = 0
            AND (jobs.queue, jobs.kind, jobs.priority)
            > (claimable.queue, claimable.kind, claimable.priority)
        ORDER BY jobs.queue, jobs.kind, jobs.priority
        LIMIT 1
    ) AS next
    WHERE claimable.step < 1000
),

suspect AS (
    (
        SELECT queue, kind, priority, 1 AS step
        FROM jobs
        WHERE state = 'ready' AND crashes > 0
        ORDER BY queue, kind, priority
        LIMIT 1
    )
    UNION ALL
    SELECT next.queue, next.kind, next.priority, suspect.step + 1
    FROM suspect
    CROSS JOIN LATERAL (
        SELECT jobs.queue, jobs.kind, jobs.priority
        FROM jobs
        WHERE jobs.state = 'ready'
            AND jobs.crashes > 0
            AND (jobs.queue, jobs.kind, jobs.priority)
            > (suspect.queue, suspect.kind, suspect.priority)
        ORDER BY jobs.queue, jobs.kind, jobs.priority
        LIMIT 1
    ) AS next
    WHERE suspect.step < 1000
),

due AS (
    SELECT claimable.queue, first.available_at
    FROM claimable
    LEFT JOIN LATERAL (
        SELECT jobs.available_at
        FROM jobs
        WHERE jobs.state = 'ready'
            AND jobs.crashes = 0
            AND jobs.queue = claimable.queue
            AND jobs.kind = claimable.kind
            AND jobs.priority = claimable.priority
            AND jobs.available_at <= now()
        ORDER BY jobs.available_at
        LIMIT 1
    ) AS first ON true
    UNION ALL
    SELECT suspect.queue, first.available_at
    FROM suspect
    LEFT JOIN LATERAL (
        SELECT jobs.available_at
        FROM jobs
        WHERE jobs.state = 'ready'
            AND jobs.crashes > 0
            AND jobs.queue = suspect.queue
            AND jobs.kind = suspect.kind
            AND jobs.priority = suspect.priority
            AND jobs.available_at <= now()
        ORDER BY jobs.available_at
        LIMIT 1
    ) AS first ON true
),

waiting AS (
    SELECT queue, min(available_at) AS oldest
    FROM due
    GROUP BY queue
)

SELECT
    waiting.queue,
    (
        SELECT count(*) FROM (
            SELECT FROM jobs
            WHERE jobs.state = 'ready' AND jobs.crashes = 0 AND jobs.queue = waiting.queue
            ORDER BY jobs.kind, jobs.priority, jobs.available_at, jobs.id
            LIMIT $1::int
        ) AS counted
    ) + (
        SELECT count(*) FROM (
            SELECT FROM jobs
            WHERE jobs.state = 'ready' AND jobs.crashes > 0 AND jobs.queue = waiting.queue
            ORDER BY jobs.kind, jobs.priority, jobs.available_at, jobs.id
            LIMIT $1::int
        ) AS counted
    ) AS ready,
    coalesce(extract(EPOCH FROM clock_timestamp() - waiting.oldest), 0)::float8
        AS oldest_age_seconds
FROM waiting
