-- running → dead: the last attempt failed, or the handler discarded the job.
--
-- $1 id bigint, $2 owner text, $3 fence bigint · $4 last_error text
-- One row (id), or none: the lease is lost.
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
RETURNING id
