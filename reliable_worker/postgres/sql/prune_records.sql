-- prune_records: forget operators' actions of long ago, and worker processes that are gone.
-- Called by maintenance/pruner.py.
-- $1 float8: seconds to keep actions, null: for ever · $2 int: actions to look at
-- $3 float8: seconds of silence after which a worker process is forgotten
-- Rows: one, actions bigint, processes bigint (deleted)
WITH head AS MATERIALIZED (
    SELECT id, acted_at
    FROM operator_actions
    ORDER BY id
    LIMIT $2::int
),

actions AS (
    DELETE FROM operator_actions
    USING head
    WHERE operator_actions.id = head.id
        AND head.acted_at < now() - make_interval(secs => $1::float8)
    RETURNING operator_actions.id
),

processes AS (
    DELETE FROM worker_processes
    WHERE seen_at < now() - make_interval(secs => $3::float8)
    RETURNING boot
)

SELECT
    (SELECT count(*) FROM actions) AS actions,
    (SELECT count(*) FROM processes) AS processes
