-- suspects: how many jobs wait to run alone because a process died while running them.
-- Called by maintenance/waking.py at every tick; the parent forks quarantine children for them.
-- Paused queues are left out by a CASE, of which the planner makes no guess: of `<> ALL` it
-- expects that nothing is left, and reads and sorts the table.
-- $1 text[]: kinds known
-- $2 text[]: queues served, empty for every queue
-- $3 int: count no further
-- Rows: one row, waiting bigint
SELECT count(*) AS waiting
FROM (
    SELECT FROM jobs
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
) AS suspect
