-- The same as jobs_list.sql for a state that few jobs are in, read from that state's own index:
-- five dead jobs among millions that succeeded are found at once.
--
-- $1 state text: ready, running or dead · $2 queue text, $3 kind text: null for all · $4 only ids
-- under this one bigint, null for the newest · $5 limit int · $6 few int: how many jobs of the
-- state are few · $7 part of last_error text, $8 least age in seconds float8, $9 greatest age in
-- seconds float8: each null for all
-- Rows: counted bigint (jobs of the state, up to $6 + 1; more than $6: nothing else is told), then
-- the columns of jobs_list.sql, null where nothing fits. Called by `jobs list`.
WITH open AS MATERIALIZED (
    (
        SELECT id FROM jobs
        WHERE $1::text = 'ready' AND state = 'ready' AND crashes = 0
        ORDER BY queue, kind, priority, available_at, id
        LIMIT $6::int + 1
    )
    UNION ALL
    (
        SELECT id FROM jobs
        WHERE $1::text = 'ready' AND state = 'ready' AND crashes > 0
        ORDER BY queue, kind, priority, available_at, id
        LIMIT $6::int + 1
    )
    UNION ALL
    (
        SELECT id FROM jobs
        WHERE $1::text = 'running' AND state = 'running'
        ORDER BY claimed_at
        LIMIT $6::int + 1
    )
    UNION ALL
    (
        SELECT id FROM jobs
        WHERE $1::text = 'dead' AND state = 'dead'
        ORDER BY queue, id
        LIMIT $6::int + 1
    )
)
SELECT c.counted, f.*
FROM (SELECT count(*) AS counted FROM open) AS c
LEFT JOIN LATERAL (
    SELECT j.id, j.state, j.kind, j.queue, j.priority, j.attempts, j.max_attempts, j.crashes,
           j.available_at AT TIME ZONE 'UTC' AS available_at,
           j.created_at AT TIME ZONE 'UTC' AS created_at,
           j.last_error
    FROM open AS o
    -- OFFSET 0: one look by key for each of the few, where a join might read the table
    CROSS JOIN LATERAL (
        SELECT d.id, d.state, d.kind, d.queue, d.priority, d.attempts, d.max_attempts, d.crashes,
               d.available_at, d.created_at, d.last_error
        FROM jobs AS d
        WHERE d.id = o.id
        OFFSET 0
    ) AS j
    WHERE c.counted <= $6::int
      AND o.id < coalesce($4::bigint, 9223372036854775807)
      AND j.state = $1
      AND ($2::text IS NULL OR j.queue = $2)
      AND ($3::text IS NULL OR j.kind = $3)
      AND ($7::text IS NULL OR strpos(lower(j.last_error), lower($7)) > 0)
      AND ($8::float8 IS NULL OR j.created_at <= now() - $8 * interval '1 second')
      AND ($9::float8 IS NULL OR j.created_at >= now() - $9 * interval '1 second')
    ORDER BY j.id DESC
    LIMIT $5::int
) AS f ON true
