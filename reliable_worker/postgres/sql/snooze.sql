-- running → ready because the handler asked for later: the attempt is given back, counted.
--
-- $1 id bigint, $2 owner text, $3 fence bigint · $4 delay_seconds float8
-- One row (id), or none: the lease is lost.
UPDATE jobs
SET state = 'ready',
    attempts = greatest(attempts - 1, 0),
    snoozes = snoozes + 1,
    available_at = clock_timestamp() + $4::float8 * interval '1 second',
    lease_owner = NULL,
    lease_until = NULL
WHERE id = $1
  AND lease_owner = $2 -- fence
  AND fence = $3 -- fence
RETURNING id
