-- Invariant after the drain: no process of the worker is connected any more.
--
-- One row: violations bigint, an example's application_name
SELECT count(*), min(application_name)
FROM pg_stat_activity
WHERE datname = current_database()
  AND pid <> pg_backend_pid()
  AND application_name LIKE 'rw:%'
