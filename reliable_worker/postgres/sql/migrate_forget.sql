-- Drop the marks above a version: an operator says that those files are not applied.
-- $1 integer: the last version that stays. Called by: postgres.migrate (force).
DELETE FROM reliable_worker_migrations
WHERE version > $1::integer
