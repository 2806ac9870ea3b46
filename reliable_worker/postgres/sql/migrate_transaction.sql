-- Which transaction this is, to see that a migration file did not end it.
-- No parameters. Returns: xid text. Called by: postgres.migrate, before and after a file.
SELECT pg_current_xact_id()::text AS xid
