-- prune: delete jobs that ended long enough ago, and their history with them.
-- Called by maintenance/pruner.py. One slice of the primary key at a time, so that no index has to
-- be kept for it; only rows that are over are locked, and locked ones are skipped: no claim waits.
-- $1 bigint: look at ids above this one · $2 int: at so many rows
-- $3 float8, $4 float8, $5 float8: seconds to keep succeeded, cancelled, dead; null: for ever
-- Rows: one, always: looked bigint (rows looked at), last bigint (the greatest id of them, null:
--   none), young boolean (none of them was created before the shortest time to keep ends: the rest
--   of the table is younger still), succeeded bigint, cancelled bigint, dead bigint (deleted)
WITH looked AS MATERIALIZED (
    SELECT id, created_at
    FROM jobs
    WHERE id > $1::bigint
    ORDER BY id
    LIMIT $2::int
),

old AS MATERIALIZED (
    SELECT jobs.id
    FROM looked
    INNER JOIN jobs ON jobs.id = looked.id
    INNER JOIN (
        VALUES ('succeeded', $3::float8), ('cancelled', $4::float8), ('dead', $5::float8)
    ) AS kept (state, seconds) ON kept.state = jobs.state
    WHERE true
        AND jobs.ended_at < now() - make_interval(secs => kept.seconds) -- fence
    FOR UPDATE OF jobs SKIP LOCKED
),

gone AS (
    DELETE FROM jobs
    USING old
    WHERE jobs.id = old.id
    RETURNING jobs.id, jobs.state
),

forgotten AS (
    DELETE FROM job_attempts
    USING gone
    WHERE job_attempts.job_id = gone.id
)

SELECT
    (SELECT count(*) FROM looked) AS looked,
    (SELECT max(id) FROM looked) AS last,
    (
        SELECT coalesce(
            min(created_at) > now() - make_interval(
                secs => least($3::float8, $4::float8, $5::float8)
            ),
            true
        )
        FROM looked
    ) AS young,
    count(*) FILTER (WHERE state = 'succeeded') AS succeeded,
    count(*) FILTER (WHERE state = 'cancelled') AS cancelled,
    count(*) FILTER (WHERE state = 'dead') AS dead
FROM gone
