-- One migrator per line: try its advisory lock, never wait for it on the server (a blocking waiter
-- and CREATE INDEX CONCURRENTLY would wait for each other).
-- $1 bigint: the line's lock key. Returns: locked boolean. The lock ends with the session.
-- Called by: postgres.migrate, polled.
SELECT pg_try_advisory_lock($1::bigint) AS locked
