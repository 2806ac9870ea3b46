-- The next accounts whose entries are to be looked at: those that changed since they were found in
-- order, or all.
-- $1 bigint: after this id, $2 boolean: all of them, $3 integer: at most so many
-- Returns: id, balance, last_sequence, and up to which sequence (0: none) and with which balance it
-- was found in order. Called by: ledger.verify.
SELECT a.id, a.balance, a.last_sequence,
       CASE WHEN $2::boolean THEN 0 ELSE coalesce(v.sequence, 0) END,
       CASE WHEN $2::boolean THEN NULL ELSE v.balance_after END
FROM accounts AS a
LEFT JOIN ledger_verified AS v ON v.account_id = a.id
WHERE a.id > $1::bigint
  AND ($2::boolean
       OR a.last_sequence <> coalesce(v.sequence, 0)
       OR a.balance <> v.balance_after)
ORDER BY a.id
LIMIT $3::integer
