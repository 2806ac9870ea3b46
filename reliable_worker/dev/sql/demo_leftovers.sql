-- The databases of demos that were killed: mine by name and owner, but nobody holds their number.
-- Held numbers are looked up in pg_locks, which shows the locks of every database of the server.
--
-- One row per database: its number bigint
SELECT ('x' || right(datname, 16))::bit(64)::bigint AS number
FROM pg_database
WHERE datname ~ '^reliable_worker_demo_[0-9a-f]{16}$'
  AND datdba = (SELECT oid FROM pg_roles WHERE rolname = current_user)
  AND NOT EXISTS (
      SELECT FROM pg_locks
      WHERE locktype = 'advisory'
        AND objsubid = 1 -- a lock by one bigint, its halves in classid and objid
        AND (classid::bigint << 32) | objid::bigint
            = ('x' || right(datname, 16))::bit(64)::bigint)
