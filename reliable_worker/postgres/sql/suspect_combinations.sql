-- Which (queue, kind, priority) have ready suspects, due or not: a loose scan of jobs_suspect_idx,
-- one index probe per combination however many jobs each holds.
--
-- Rows: queue text, kind text, priority smallint. Run by a quarantine process at its start, with
-- its own poll and while its claims come back full.
WITH RECURSIVE found AS (
    (
        SELECT queue, kind, priority
        FROM jobs
        WHERE state = 'ready' AND crashes > 0
        ORDER BY queue, kind, priority
        LIMIT 1
    )
    UNION ALL
    SELECT n.queue, n.kind, n.priority
    FROM found AS f
    CROSS JOIN LATERAL (
        SELECT j.queue, j.kind, j.priority
        FROM jobs AS j
        WHERE j.state = 'ready' AND j.crashes > 0
          AND (j.queue, j.kind, j.priority) > (f.queue, f.kind, f.priority)
        ORDER BY j.queue, j.kind, j.priority
        LIMIT 1
    ) AS n
)
SELECT queue, kind, priority FROM found
