-- running → ready: the attempt failed and attempts are left; later, with the reason.
--
-- $1 id bigint, $2 owner text, $3 fence bigint · $4 delay_seconds float8 · $5 last_error text
-- Adds the attempt to the job's history.
-- One row (job_id), or none: the lease is lost. A failure shows that the job no longer kills its
-- process or its connection, so the counts in a row begin anew.
WITH ended AS (
    UPDATE jobs
    SET state = 'ready',
        available_at = clock_timestamp() + $4::float8 * interval '1 second',
        lease_owner = NULL,
        lease_until = NULL,
        last_error = $5,
        refunds = 0,
        snoozes = 0
    WHERE id = $1
      AND lease_owner = $2 -- fence
      AND fence = $3 -- fence
    RETURNING id, attempts, claimed_at
)
INSERT INTO job_attempts (job_id, attempt, owner, claimed_at, outcome, error)
SELECT id, attempts, $2::text, claimed_at, 'failed', left($5::text, 200)
FROM ended
RETURNING job_id
