-- obituary_refund: free every other job held by a process that is dead.
-- Called by maintenance/obituary.py after the process was reaped: jobs claimed but not started,
-- returned but not acknowledged, claimed by a statement whose reply was lost, or interrupted by a
-- drain. They bear no blame: the attempt is given back and they keep their place. Rows that are
-- locked are skipped and tried again.
-- $1 text: the boot id of the dead process, the prefix of its owners
-- $2 bigint[], $3 bigint[]: id and fence of the jobs that obituary_crash or obituary_timeout
--   judges; one that was locked a moment ago must wait for its own verdict
-- $4 float8: the mark, a claimed_at in epoch seconds below which nothing runs
-- Each attempt is added to its job's history.
-- Rows: one per job freed: id, queue, kind, run (the number of its attempt), owner, dead (false)
WITH judged AS MATERIALIZED (
    SELECT id, fence FROM unnest($2::bigint[], $3::bigint[]) AS named (id, fence)
),

held AS MATERIALIZED (
    SELECT id, attempts AS run, lease_owner
    FROM jobs
    WHERE state = 'running'
        AND claimed_at >= to_timestamp($4::float8)
        AND starts_with(lease_owner, $1::text || '.') -- fence
        AND (id, fence) NOT IN (SELECT judged.id, judged.fence FROM judged) -- fence
    -- The sum keeps the planner from walking the primary key to save itself a sort.
    ORDER BY id + 0
    FOR NO KEY UPDATE SKIP LOCKED
),

taken AS (
    UPDATE jobs
    SET
        state = 'ready',
        attempts = greatest(attempts - 1, 0),
        fence = fence + 1,
        lease_owner = NULL,
        lease_until = NULL
    FROM held
    WHERE jobs.id = held.id
    RETURNING
        jobs.id, jobs.claimed_at, jobs.queue, jobs.kind, held.run,
        held.lease_owner AS owner, false AS dead
),

recorded AS (
    INSERT INTO job_attempts (job_id, attempt, owner, claimed_at, outcome, error)
    SELECT id, run, owner, claimed_at, 'released', NULL
    FROM taken
)

SELECT id, queue, kind, run, owner, dead
FROM taken
