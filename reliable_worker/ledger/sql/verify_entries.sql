-- A batch of an account's entries in order, each held against its transfer.
-- $1 bigint: account, $2 bigint: after this sequence, $3 bigint: up to this one,
-- $4 integer: at most so many
-- Returns: sequence, transfer_id, amount, balance_after, whether the transfer says the same,
-- whether its entries are two and sum to 0. Called by: ledger.verify.
SELECT e.sequence, e.transfer_id, e.amount, e.balance_after,
       t.status = 'completed'
         AND e.amount = CASE e.account_id WHEN t.from_id THEN -t.amount
                                          WHEN t.to_id THEN t.amount ELSE 0 END AS as_asked,
       (SELECT count(*) = 2 AND sum(o.amount) = 0
        FROM entries AS o
        WHERE o.transfer_id = e.transfer_id) AS balanced
FROM entries AS e
JOIN transfer_requests AS t ON t.transfer_id = e.transfer_id
WHERE e.account_id = $1::bigint
  AND e.sequence > $2::bigint
  AND e.sequence <= $3::bigint
ORDER BY e.sequence
LIMIT $4::integer
