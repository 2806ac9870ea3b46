-- running → ready because the handler asked for later: the attempt is given back, counted.
--
-- $1 id bigint, $2 owner text, $3 fence bigint · $4 delay_seconds float8
-- Adds the attempt to the job's history.
-- The run went well, so the row of refunds ends: a job that asks for later day after day would
-- otherwise add up the faults of weeks, and the fourth restart of a server would cost its attempt.
-- One row (job_id), or none: the lease is lost.
WITH ended AS (
    UPDATE jobs
    SET state = 'ready',
        attempts = greatest(attempts - 1, 0),
        snoozes = snoozes + 1,
        refunds = 0,
        available_at = clock_timestamp() + $4::float8 * interval '1 second',
        lease_owner = NULL,
        lease_until = NULL
    WHERE id = $1
      AND lease_owner = $2 -- fence
      AND fence = $3 -- fence
    RETURNING id, attempts, claimed_at
)
INSERT INTO job_attempts (job_id, attempt, owner, claimed_at, outcome)
SELECT id, attempts + 1, $2::text, claimed_at, 'snoozed'
FROM ended
RETURNING job_id
