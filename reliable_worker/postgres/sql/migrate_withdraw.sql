-- Take a mark back whose transaction was rolled back for certain: nothing is left to look at.
-- $1 integer: version. Called by: postgres.migrate.
DELETE FROM reliable_worker_migrations
WHERE version = $1::integer
  AND state = 'running'
