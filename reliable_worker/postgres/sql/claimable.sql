-- claimable: which combinations of queue, kind and priority have a job that a claim would take.
-- Called by maintenance/waking.py at every tick. A loose index scan: each step jumps in
-- jobs_claimable_idx to the next combination instead of reading the jobs of this one, at most $6
-- steps from where the last call ended.
-- $1 text[]: kinds known
-- $2 text[]: queues served, empty for every queue
-- $3 text, $4 text, $5 smallint: go on after this combination; '', '', -1 to begin
-- $6 int: at most so many combinations
-- Rows: queue, kind, priority, due (a known kind of a served queue with a job due), in order
WITH RECURSIVE combination AS (
    (
        SELECT queue, kind, priority, 1 AS step
        FROM jobs
        WHERE state = 'ready'
            AND crashes = 0
            AND (queue, kind, priority) > ($3::text, $4::text, $5::smallint)
        ORDER BY queue, kind, priority
        LIMIT 1
    )
    UNION ALL
    SELECT next.queue, next.kind, next.priority, combination.step + 1
    FROM combination
    CROSS JOIN LATERAL (
        SELECT jobs.queue, jobs.kind, jobs.priority
        FROM jobs
        WHERE jobs.state = 'ready'
            AND jobs.crashes = 0
            AND (jobs.queue, jobs.kind, jobs.priority)
            > (combination.queue, combination.kind, combination.priority)
        ORDER BY jobs.queue, jobs.kind, jobs.priority
        LIMIT 1
    ) AS next
    WHERE combination.step < $6::int
)

SELECT
    combination.queue,
    combination.kind,
    combination.priority,
    first.id IS NOT NULL AS due
FROM combination
-- A LATERAL with order and limit, and not EXISTS: that the planner may turn into a hash of the
-- backlog, and without the order it may read the table until it meets the first.
LEFT JOIN LATERAL (
    SELECT jobs.id
    FROM jobs
    WHERE combination.kind = ANY($1::text[])
        AND (cardinality($2::text[]) = 0 OR combination.queue = ANY($2::text[]))
        AND combination.queue <> ALL (ARRAY(SELECT name FROM paused_queues))
        AND jobs.state = 'ready'
        AND jobs.crashes = 0
        AND jobs.queue = combination.queue
        AND jobs.kind = combination.kind
        AND jobs.priority = combination.priority
        AND jobs.available_at <= now()
        AND jobs.attempts < jobs.max_attempts
    ORDER BY jobs.available_at, jobs.id
    LIMIT 1
) AS first ON true
ORDER BY combination.step
