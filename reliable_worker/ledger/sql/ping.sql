-- Does the database answer, and as one that takes writes?
-- No parameters. Returns: one row, whether it is a standby. Called by: ledger.health, ledger.pool.
SELECT pg_is_in_recovery()
