-- clock: the database's time.
-- Called by maintenance/census.py, which stamps its counts with it, and maintenance/expire.py,
-- whose first mark it is.
-- Rows: one, now float8 (epoch seconds)
SELECT extract(EPOCH FROM clock_timestamp())::float8 AS now
