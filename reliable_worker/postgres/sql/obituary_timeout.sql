-- obituary_timeout: free the jobs whose threads were stuck and cost their process its life.
-- Called by maintenance/obituary.py after the process was reaped. A timeout is a failed attempt:
-- it stays spent, the job backs off, and is dead if it was the last. Like any failure it ends the
-- rows of snoozes and refunds. Rows that are locked are skipped and tried again.
-- $1 text: the boot id of the dead process, the prefix of its owners
-- $2 bigint[], $3 bigint[]: id and fence of each stuck job
-- $4 text: what is said of it
-- $5 float8, $6 float8, $7 float8: backoff base and maximum in seconds, jitter as a share
-- Each attempt is added to its job's history.
-- Rows: one per job freed: id, queue, kind, run (the number of its attempt), owner, dead
WITH stuck AS MATERIALIZED (
    SELECT jobs.id, jobs.attempts AS run, jobs.lease_owner
    FROM unnest($2::bigint[], $3::bigint[]) AS judged (id, fence)
    INNER JOIN jobs ON judged.id = jobs.id
    WHERE true
        AND jobs.fence = judged.fence -- fence
        AND starts_with(jobs.lease_owner, $1::text || '.') -- fence
    ORDER BY jobs.id
    FOR NO KEY UPDATE OF jobs SKIP LOCKED
),

taken AS (
    UPDATE jobs
    SET
        state = CASE WHEN attempts < max_attempts THEN 'ready' ELSE 'dead' END,
        fence = fence + 1,
        snoozes = 0,
        refunds = 0,
        lease_owner = NULL,
        lease_until = NULL,
        available_at = CASE
            WHEN attempts < max_attempts
                -- 2^40 s is past any maximum: the exponent is bounded so that it cannot overflow
                THEN clock_timestamp() + make_interval(
                    secs => least(
                        $5::float8 * power(2, least(greatest(attempts, 1) - 1, 40)), $6::float8
                    ) * (1 + $7::float8 * random())
                )
            ELSE available_at
        END,
        last_error = $4::text,
        ended_at = CASE WHEN attempts < max_attempts THEN ended_at ELSE clock_timestamp() END
    FROM stuck
    WHERE jobs.id = stuck.id
    RETURNING
        jobs.id, jobs.claimed_at, jobs.queue, jobs.kind, stuck.run,
        stuck.lease_owner AS owner, jobs.state = 'dead' AS dead
),

recorded AS (
    INSERT INTO job_attempts (job_id, attempt, owner, claimed_at, outcome, error)
    SELECT id, run, owner, claimed_at, 'stuck', left($4::text, 200)
    FROM taken
)

SELECT id, queue, kind, run, owner, dead
FROM taken
