-- Everything the database remembers of its migrations, in order.
-- No parameters. Returns: version, name, kind, checksum, state, started_at and applied_at as text.
-- Called by: postgres.migrate (check_range, up, status, verify, force).
SELECT version, name, kind, checksum, state, started_at::text, applied_at::text
FROM reliable_worker_migrations
ORDER BY version
