-- prune_attempts: delete the oldest attempts of the history.
-- Called by maintenance/pruner.py. Looks at the head of the table only, which is its oldest part.
-- $1 float8: seconds to keep, null: for ever · $2 bigint: rows to keep at most · $3 int: how many
--   rows to look at
-- Rows: one, deleted bigint
WITH head AS MATERIALIZED (
    SELECT id, ended_at
    FROM job_attempts
    ORDER BY id
    LIMIT $3::int
),

gone AS (
    DELETE FROM job_attempts
    USING head
    WHERE job_attempts.id = head.id
        AND (
            head.ended_at < now() - make_interval(secs => $1::float8)
            OR head.id <= (SELECT max(id) FROM job_attempts) - $2::bigint
        )
    RETURNING job_attempts.id
)

SELECT count(*) AS deleted FROM gone
