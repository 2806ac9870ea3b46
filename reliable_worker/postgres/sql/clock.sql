-- clock: the database's time, which stamps a census.
-- Called by maintenance/census.py.
-- Rows: one, now float8 (epoch seconds)
SELECT extract(EPOCH FROM clock_timestamp())::float8 AS now
