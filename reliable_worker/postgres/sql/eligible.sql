-- eligible: how many jobs a worker of these kinds and queues could start now, suspects included.
-- Called by maintenance/waking.py for `run --drain`, which ends when this says none. It locks
-- nothing: a job in another's hands is not ready. Read in the order of the two indexes, so that
-- it stops at the limit instead of collecting the whole backlog first.
-- Paused queues are left out by a CASE, of which the planner makes no guess: of `<> ALL` it
-- expects that nothing is left, and reads and sorts the table.
-- $1 text[]: kinds known
-- $2 text[]: queues served, empty for every queue
-- $3 int: count no further, per index
-- Rows: one, eligible bigint
SELECT count(*) AS eligible
FROM (
    (
        SELECT id FROM jobs
        WHERE state = 'ready'
            AND crashes = 0
            AND available_at <= now()
            AND attempts < max_attempts
            AND kind = ANY($1::text[])
            AND (cardinality($2::text[]) = 0 OR queue = ANY($2::text[]))
            AND CASE WHEN queue = ANY(ARRAY(SELECT name FROM paused_queues))
                THEN false ELSE true END
        ORDER BY queue, kind, priority, available_at, id
        LIMIT $3::int
    )
    UNION ALL
    (
        SELECT id FROM jobs
        WHERE state = 'ready'
            AND crashes > 0
            AND available_at <= now()
            AND attempts < max_attempts
            AND kind = ANY($1::text[])
            AND (cardinality($2::text[]) = 0 OR queue = ANY($2::text[]))
            AND CASE WHEN queue = ANY(ARRAY(SELECT name FROM paused_queues))
                THEN false ELSE true END
        ORDER BY queue, kind, priority, available_at, id
        LIMIT $3::int
    )
) AS job
