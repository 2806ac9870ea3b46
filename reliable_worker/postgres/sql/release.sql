-- running → ready for jobs a drain interrupted or that never started: the attempt is given back
-- and available_at stays, so that each keeps its place.
--
-- $1 ids bigint[], $2 owners text[], $3 fences bigint[]
-- Adds each attempt to its job's history.
-- Rows: job_id of each job released; a missing one has another owner.
WITH held AS (
    SELECT h.id, h.owner, h.fence
    FROM unnest($1::bigint[], $2::text[], $3::bigint[]) AS h (id, owner, fence)
),
locked AS (
    SELECT j.id, j.lease_owner
    FROM jobs AS j
    JOIN held AS h ON h.id = j.id
    WHERE true
      AND j.lease_owner = h.owner -- fence
      AND j.fence = h.fence -- fence
    ORDER BY j.id
    FOR NO KEY UPDATE OF j
),
ended AS (
    UPDATE jobs AS j
    SET state = 'ready',
        attempts = greatest(j.attempts - 1, 0),
        lease_owner = NULL,
        lease_until = NULL
    FROM locked
    WHERE j.id = locked.id
    RETURNING j.id, j.attempts + 1 AS attempt, locked.lease_owner, j.claimed_at
)
INSERT INTO job_attempts (job_id, attempt, owner, claimed_at, outcome)
SELECT id, attempt, lease_owner, claimed_at, 'released'
FROM ended
RETURNING job_id
