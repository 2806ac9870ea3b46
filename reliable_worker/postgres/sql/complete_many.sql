-- running → succeeded for a group of jobs of one process, each row fenced alone.
--
-- $1 ids bigint[], $2 owners text[], $3 fences bigint[]
-- Rows: id, xid text. A job that is missing is not proven lost (its row may be locked just now):
-- it is completed alone, waiting.
WITH held AS (
    SELECT h.id, h.owner, h.fence
    FROM unnest($1::bigint[], $2::text[], $3::bigint[]) AS h (id, owner, fence)
),
locked AS (
    SELECT j.id
    FROM jobs AS j
    JOIN held AS h ON h.id = j.id
    WHERE true
      AND j.lease_owner = h.owner -- fence
      AND j.fence = h.fence -- fence
    ORDER BY j.id
    FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE jobs AS j
SET state = 'succeeded',
    completed_at = clock_timestamp(),
    ended_at = clock_timestamp(),
    completed_by = j.lease_owner,
    lease_owner = NULL,
    lease_until = NULL,
    last_error = NULL,
    crashes = 0,
    refunds = 0,
    snoozes = 0
FROM locked
WHERE j.id = locked.id
RETURNING j.id, pg_current_xact_id()::text AS xid
