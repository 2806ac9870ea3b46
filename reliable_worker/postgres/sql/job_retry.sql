-- dead → ready, by an operator: all counts start over, the fence stays.
--
-- $1 id bigint
-- One row (id), or none: there is no such job, or it is not dead.
-- Called by `jobs retry`.
UPDATE jobs
SET state = 'ready',
    attempts = 0,
    crashes = 0,
    refunds = 0,
    snoozes = 0,
    available_at = clock_timestamp(),
    ended_at = NULL
WHERE id = $1
  AND state = 'dead' -- fence
RETURNING id
