-- health: what keeps vacuum from removing dead rows, and how many there are.
-- Called by maintenance/census.py on a timer. Sessions of other roles are seen by members of
-- pg_read_all_stats only; without it the age is that of the worker's own and of prepared ones.
-- Row: oldest_age_seconds float8 (0: nothing pins), live float8, dead float8 (rows of jobs)
SELECT
    (
        SELECT coalesce(max(extract(EPOCH FROM clock_timestamp() - since)), 0)::float8
        FROM (
            SELECT xact_start AS since
            FROM pg_stat_activity
            WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
                AND datname = current_database()
                AND pid <> pg_backend_pid()
            UNION ALL
            SELECT prepared
            FROM pg_prepared_xacts
            WHERE database = current_database()
        ) AS pins
    ) AS oldest_age_seconds,
    coalesce(pg_stat_get_live_tuples('jobs'::regclass), 0)::float8 AS live,
    coalesce(pg_stat_get_dead_tuples('jobs'::regclass), 0)::float8 AS dead
