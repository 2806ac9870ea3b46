-- The file is applied. Runs in the file's own transaction where it has one.
-- $1 integer: version. 1 row, or the mark was changed under the runner.
-- Called by: postgres.migrate.
UPDATE reliable_worker_migrations
SET state = 'applied', applied_at = clock_timestamp()
WHERE version = $1::integer
  AND state = 'running'
