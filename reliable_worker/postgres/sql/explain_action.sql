-- The last thing an operator did with a job.
--
-- $1 id bigint
-- One row or none: action, operator, acted_at (without zone, in UTC). Called by `jobs explain`.
SELECT o.action, o.operator, o.acted_at AT TIME ZONE 'UTC' AS acted_at
FROM operator_actions AS o
WHERE o.job_ids @> ARRAY[$1::bigint]
ORDER BY o.id DESC
LIMIT 1
