-- An account's balance as of a time: after the last entry up to then, else before the first entry
-- (the opening balance), else, of an account without entries, what it is.
-- $1 bigint: its id, $2 text: a timestamp with zone
-- Returns: balance; the balance is null for a time that has not come. No row: no such account.
-- Called by: ledger.reads.
SELECT CASE WHEN $2::text::timestamptz <= clock_timestamp() THEN coalesce(
    (
        SELECT e.balance_after
        FROM entries AS e
        WHERE e.account_id = a.id
          AND e.created_at <= $2::text::timestamptz
        ORDER BY e.created_at DESC, e.sequence DESC
        LIMIT 1
    ),
    (SELECT e.balance_after - e.amount FROM entries AS e WHERE e.account_id = a.id
     ORDER BY e.sequence LIMIT 1),
    a.balance
) END AS balance
FROM accounts AS a
WHERE a.id = $1::bigint
