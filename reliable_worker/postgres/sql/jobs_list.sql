-- Jobs for an operator's eyes, newest first; payloads and keys stay out.
--
-- $1 state text, $2 queue text, $3 kind text: each null for all · $4 only ids under this one
-- bigint, null for the newest · $5 limit int · $6 only ids from this one on bigint, null for all
-- (see jobs_floor.sql) · $7 key text, $8 part of last_error text, $9 least age in seconds float8,
-- $10 greatest age in seconds float8: each null for all
-- One row per job; times without zone, in UTC, because a session's own zone may push the last
-- hours of the year 9999 into a year that clients cannot read.
-- Called by `jobs list` and by the verbs that take its filters.
SELECT j.id, j.state, j.kind, j.queue, j.priority, j.attempts, j.max_attempts, j.crashes,
       j.available_at AT TIME ZONE 'UTC' AS available_at,
       j.created_at AT TIME ZONE 'UTC' AS created_at,
       j.last_error
FROM jobs AS j
WHERE j.id < coalesce($4::bigint, 9223372036854775807)
  AND j.id >= coalesce($6::bigint, 0)
  AND ($1::text IS NULL OR j.state = $1)
  AND ($2::text IS NULL OR j.queue = $2)
  AND ($3::text IS NULL OR j.kind = $3)
  AND ($7::text IS NULL OR j.idempotency_key = $7)
  AND ($8::text IS NULL OR strpos(lower(j.last_error), lower($8)) > 0)
  AND ($9::float8 IS NULL OR j.created_at <= now() - $9 * interval '1 second')
  AND ($10::float8 IS NULL OR j.created_at >= now() - $10 * interval '1 second')
ORDER BY j.id DESC
LIMIT $5
