-- Which of these leases still stand, without waiting for a lock. Reads only.
--
-- $1 ids bigint[], $2 owners text[], $3 fences bigint[]
-- Rows: id of each lease whose row still names this owner and fence.
SELECT j.id
FROM jobs AS j
JOIN unnest($1::bigint[], $2::text[], $3::bigint[]) AS h (id, owner, fence) ON h.id = j.id
WHERE j.lease_owner = h.owner AND j.fence = h.fence
