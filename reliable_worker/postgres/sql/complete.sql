-- running → succeeded, as the first statement of the transaction that holds the job's effects:
-- from here on the row's lock is the lease.
--
-- $1 id bigint, $2 owner text, $3 fence bigint
-- One row (xid text: the transaction this belongs to), or none: the lease is lost.
UPDATE jobs
SET state = 'succeeded',
    completed_at = clock_timestamp(),
    ended_at = clock_timestamp(),
    completed_by = lease_owner,
    lease_owner = NULL,
    lease_until = NULL,
    last_error = NULL,
    crashes = 0,
    refunds = 0,
    snoozes = 0
WHERE id = $1
  AND lease_owner = $2 -- fence
  AND fence = $3 -- fence
RETURNING pg_current_xact_id()::text AS xid
