-- Open an account.
-- $1 bigint: its id, $2 bigint: its opening balance
-- Returns: the id; no row if the account exists. Called by: ledger.accounts.
INSERT INTO accounts (id, balance)
VALUES ($1::bigint, $2::bigint)
ON CONFLICT (id) DO NOTHING
RETURNING id
