-- Where a page of `jobs list` stops looking, so that a filter that fits nothing costs no more than
-- one that fits much.
--
-- $1 only ids under this one bigint, null for the newest · $2 rows int: how many to look at
-- One row (id of the last one to look at), or none: the table ends before.
SELECT j.id
FROM jobs AS j
WHERE j.id < coalesce($1::bigint, 9223372036854775807)
ORDER BY j.id DESC
OFFSET $2::int - 1
LIMIT 1
