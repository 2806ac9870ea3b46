-- Entries beyond an account's last sequence that are older than the account's row can explain.
-- $1 bigint: account. Returns: how many, against the row as it is in the same snapshot.
-- Called by: ledger.verify.
SELECT count(*)
FROM accounts AS a
JOIN entries AS e ON e.account_id = a.id AND e.sequence > a.last_sequence
WHERE a.id = $1::bigint
