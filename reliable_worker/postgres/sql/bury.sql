-- running → dead: the last attempt failed, or the handler discarded the job.
--
-- $1 id bigint, $2 owner text, $3 fence bigint · $4 last_error text
-- Adds the attempt to the job's history.
-- One row (job_id), or none: the lease is lost.
WITH ended AS (
    UPDATE jobs
    SET state = 'dead',
        ended_at = clock_timestamp(),
        lease_owner = NULL,
        lease_until = NULL,
        last_error = $4,
        refunds = 0,
        snoozes = 0
    WHERE id = $1
      AND lease_owner = $2 -- fence
      AND fence = $3 -- fence
    RETURNING id, attempts, claimed_at
)
INSERT INTO job_attempts (job_id, attempt, owner, claimed_at, outcome, error)
SELECT id, attempts, $2::text, claimed_at, 'dead', left($4::text, 200)
FROM ended
RETURNING job_id
