-- One transfer; its key is its owner's secret and stays here.
-- $1 bigint: its id. Returns: from_id, to_id, amount, status, created_at and completed_at as text.
-- Called by: ledger.reads.
SELECT from_id, to_id, amount, status,
       to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
       to_char(completed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
FROM transfer_requests
WHERE transfer_id = $1::bigint
