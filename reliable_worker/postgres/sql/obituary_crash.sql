-- obituary_crash: free the jobs that were running in a process that crashed.
-- Called by maintenance/obituary.py after the process was reaped. Each gets its attempt back and
-- one crash more, and keeps its place; from the first crash on it runs alone, and at the limit it
-- is dead with the cause. Rows that are locked are skipped and tried again.
-- $1 text: the boot id of the dead process, the prefix of its owners
-- $2 bigint[], $3 bigint[]: id and fence of each started job
-- $4 int: the crash that buries
-- $5 text: what is said of it, the signal or the exit code
-- Each attempt is added to its job's history.
-- Rows: one per job freed: id, queue, kind, run (the number of its attempt), owner, dead
WITH struck AS MATERIALIZED (
    SELECT jobs.id, jobs.attempts AS run, jobs.lease_owner
    FROM unnest($2::bigint[], $3::bigint[]) AS started (id, fence)
    INNER JOIN jobs ON started.id = jobs.id
    WHERE true
        AND jobs.fence = started.fence -- fence
        AND starts_with(jobs.lease_owner, $1::text || '.') -- fence
    ORDER BY jobs.id
    FOR NO KEY UPDATE OF jobs SKIP LOCKED
),

taken AS (
    UPDATE jobs
    SET
        state = CASE WHEN crashes + 1 < $4::int THEN 'ready' ELSE 'dead' END,
        attempts = greatest(attempts - 1, 0),
        crashes = crashes + 1,
        fence = fence + 1,
        lease_owner = NULL,
        lease_until = NULL,
        last_error = $5::text,
        ended_at = CASE WHEN crashes + 1 < $4::int THEN ended_at ELSE clock_timestamp() END
    FROM struck
    WHERE jobs.id = struck.id
    RETURNING
        jobs.id, jobs.claimed_at, jobs.queue, jobs.kind, struck.run,
        struck.lease_owner AS owner, jobs.state = 'dead' AS dead
),

recorded AS (
    INSERT INTO job_attempts (job_id, attempt, owner, claimed_at, outcome, error)
    SELECT id, run, owner, claimed_at, 'crashed', left($5::text, 200)
    FROM taken
)

SELECT id, queue, kind, run, owner, dead
FROM taken
