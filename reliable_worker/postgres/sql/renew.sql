-- Renew every due lease of a worker process at once.
--
-- $1 ids bigint[], $2 owners text[], $3 fences bigint[]: the leases · $4 lease_seconds float8
-- Rows: id of each lease renewed. A lease that is missing is not proven lost: another transaction
-- may hold its row just now (SKIP LOCKED); `probe` tells.
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
SET lease_until = clock_timestamp() + $4::float8 * interval '1 second'
FROM locked
WHERE j.id = locked.id
RETURNING j.id
