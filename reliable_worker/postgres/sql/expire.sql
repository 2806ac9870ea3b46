-- expire: take running jobs from holders whose lease has run out; nobody saw why.
-- Called by maintenance/expire.py. The attempt stays spent: the job waits (attempts - 1) seconds
-- longer each time, so that one that kills its holder is not first again, or is dead when none is
-- left. Rows in a finishing transaction are locked and therefore skipped: that lock is the lease.
-- While the server is younger than a lease nothing expires: no holder could renew while it was
-- down. The one statement reads and writes under the row's lock, so it cannot act on a row that
-- was finished in between.
-- $1 float8: the mark, a claimed_at in epoch seconds below which nothing runs
-- $2 float8: seconds the server must have been up
-- $3 int: at most so many rows
-- Each attempt is added to its job's history.
-- Rows: one per job taken: id, queue, kind, run (the number of its attempt), owner (who lost
--   it), dead
WITH lapsed AS MATERIALIZED (
    SELECT id, attempts AS run, lease_owner
    FROM jobs
    WHERE state = 'running'
        AND claimed_at >= to_timestamp($1::float8)
        AND clock_timestamp() >= pg_postmaster_start_time() + make_interval(secs => $2::float8)
        AND lease_until < clock_timestamp() -- fence
    -- The sum keeps the planner from walking the primary key to save itself a sort.
    ORDER BY id + 0
    LIMIT $3::int
    FOR NO KEY UPDATE SKIP LOCKED
),

taken AS (
    UPDATE jobs
    SET
        state = CASE WHEN attempts < max_attempts THEN 'ready' ELSE 'dead' END,
        fence = fence + 1,
        lease_owner = NULL,
        lease_until = NULL,
        available_at = CASE
            WHEN attempts < max_attempts
                THEN clock_timestamp() + make_interval(secs => greatest(attempts - 1, 0))
            ELSE available_at
        END,
        last_error = CASE
            WHEN attempts < max_attempts THEN last_error
            ELSE coalesce(last_error, 'lease expired after final attempt')
        END,
        ended_at = CASE WHEN attempts < max_attempts THEN ended_at ELSE clock_timestamp() END
    FROM lapsed
    WHERE jobs.id = lapsed.id
    RETURNING
        jobs.id, jobs.claimed_at, jobs.queue, jobs.kind, lapsed.run,
        lapsed.lease_owner AS owner, jobs.state = 'dead' AS dead
),

recorded AS (
    INSERT INTO job_attempts (job_id, attempt, owner, claimed_at, outcome, error)
    SELECT id, run, owner, claimed_at, 'expired', NULL
    FROM taken
)

SELECT id, queue, kind, run, owner, dead
FROM taken
