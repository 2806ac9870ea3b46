-- What became of a job's attempts, and what operators did with it, oldest first.
--
-- $1 id bigint · $2 limit int: the newest so many of each
-- Rows: what ('attempt' or 'operator'), at (when it ended; without zone, in UTC), attempt, owner
-- (of the attempt, or the operator and the database's account), seconds float8 (from claim to end),
-- outcome (or the operator's action), error. A success is in the job's own row.
-- Called by `jobs show`.
SELECT t.what, t.at AT TIME ZONE 'UTC' AS at, t.attempt, t.owner, t.seconds, t.outcome, t.error
FROM (
    (
        SELECT 'attempt' AS what, a.ended_at AS at, a.attempt, a.owner,
               extract(epoch FROM a.ended_at - a.claimed_at)::float8 AS seconds,
               a.outcome, a.error
        FROM job_attempts AS a
        WHERE a.job_id = $1::bigint
        ORDER BY a.id DESC
        LIMIT $2::int
    )
    UNION ALL
    (
        SELECT 'operator', o.acted_at, NULL, o.operator || ' as ' || o.account, NULL, o.action, NULL
        FROM operator_actions AS o
        WHERE o.job_ids @> ARRAY[$1::bigint]
        ORDER BY o.id DESC
        LIMIT $2::int
    )
    UNION ALL
    (
        SELECT 'attempt', j.completed_at, j.attempts, j.completed_by,
               extract(epoch FROM j.completed_at - j.claimed_at)::float8, 'succeeded', NULL
        FROM jobs AS j
        WHERE j.id = $1::bigint AND j.state = 'succeeded'
    )
) AS t
ORDER BY t.at
