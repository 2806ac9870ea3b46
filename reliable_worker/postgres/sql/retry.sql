-- running → ready: the attempt failed and attempts are left; later, with the reason.
--
-- $1 id bigint, $2 owner text, $3 fence bigint · $4 delay_seconds float8 · $5 last_error text
-- One row (id), or none: the lease is lost. A failure shows that the job no longer kills its
-- process or its connection, so the counts in a row begin anew.
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
RETURNING id
