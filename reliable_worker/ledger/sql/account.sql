-- An account as it stands.
-- $1 bigint: its id. Returns: balance, updated_at as text; no row if there is none.
-- Called by: ledger.reads.
SELECT balance, to_char(updated_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
FROM accounts
WHERE id = $1::bigint
