-- A page of an account's entries, oldest first.
-- $1 bigint: account, $2 bigint: after this sequence, $3 integer: at most so many
-- Returns: sequence, transfer_id, amount, balance_after, created_at as text.
-- Called by: ledger.reads.
SELECT sequence, transfer_id, amount, balance_after,
       to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
FROM entries
WHERE account_id = $1::bigint
  AND sequence > $2::bigint
ORDER BY sequence
LIMIT $3::integer
