-- The database's clock, from which a batch counts its delays.
--
-- One row: now as timestamp without zone, in UTC. Called by `enqueue_many` and `copy_jobs`.
SELECT clock_timestamp() AT TIME ZONE 'UTC'
