-- Who holds a line's migration lock: somebody is migrating at this moment, and a 'running' mark is
-- theirs and not left over.
-- $1 bigint: the line's lock key (pg_locks shows its halves). Returns: pid, one row or none.
-- Called by: postgres.migrate (check_range, status).
SELECT pid
FROM pg_locks
WHERE locktype = 'advisory'
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND classid::bigint = $1::bigint >> 32
  AND objid::bigint = $1::bigint & 4294967295
  AND objsubid = 1
  AND granted
