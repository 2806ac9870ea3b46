-- An account was found in order up to here.
-- $1 bigint: account, $2 bigint: sequence, $3 bigint: balance after it. Called by: ledger.verify.
INSERT INTO ledger_verified (account_id, sequence, balance_after)
VALUES ($1::bigint, $2::bigint, $3::bigint)
ON CONFLICT (account_id) DO UPDATE
SET sequence = excluded.sequence, balance_after = excluded.balance_after
