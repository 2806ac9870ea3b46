-- A range of transfers: those that are not completed, or have not two entries.
-- $1 bigint: after this id, $2 bigint: up to this one
-- Returns: transfer_id, status, entries. Called by: ledger.verify.
SELECT t.transfer_id, t.status, n.entries
FROM transfer_requests AS t
CROSS JOIN LATERAL (
    SELECT count(*) AS entries FROM entries AS e WHERE e.transfer_id = t.transfer_id
) AS n
WHERE t.transfer_id > $1::bigint
  AND t.transfer_id <= $2::bigint
  AND (t.status <> 'completed' OR n.entries <> 2)
ORDER BY t.transfer_id
