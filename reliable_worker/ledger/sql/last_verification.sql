-- What the last run of verify found.
-- No parameters. Returns: problems, when it ended in seconds since the epoch; no row if none ran.
-- Called by: ledger.health.
SELECT problems, extract(epoch FROM ended_at)::float8
FROM ledger_verifications
ORDER BY id DESC
LIMIT 1
