-- sweep: bury ready jobs that have no attempt left.
-- Called by maintenance/reaper.py. The worker never leaves such a row; plain SQL can write one, and
-- no claim would ever take it. Its last_error is the only word about it and is kept.
-- $1 int: at most so many rows
-- Rows: id, queue, kind, one row per job buried
WITH exhausted AS MATERIALIZED (
    SELECT id
    FROM jobs
    WHERE true
        AND state = 'ready' -- fence
        AND attempts >= max_attempts -- fence
    ORDER BY id
    LIMIT $1::int
    FOR NO KEY UPDATE SKIP LOCKED
)

UPDATE jobs
SET
    state = 'dead',
    ended_at = clock_timestamp()
FROM exhausted
WHERE jobs.id = exhausted.id
RETURNING jobs.id, jobs.queue, jobs.kind
