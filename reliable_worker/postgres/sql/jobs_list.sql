-- Jobs for an operator's eyes, newest first; payloads and keys stay out.
--
-- $1 state text, $2 queue text, $3 kind text: each null for all · $4 only ids under this one
-- bigint, null for the newest · $5 limit int
-- One row per job; times without zone, in UTC, because a session's own zone may push the last
-- hours of the year 9999 into a year that clients cannot read.
-- Called by `jobs list`.
SELECT j.id, j.state, j.kind, j.queue, j.priority, j.attempts, j.max_attempts, j.crashes,
       j.available_at AT TIME ZONE 'UTC' AS available_at,
       j.created_at AT TIME ZONE 'UTC' AS created_at,
       j.last_error
FROM jobs AS j
WHERE ($1::text IS NULL OR j.state = $1)
  AND ($2::text IS NULL OR j.queue = $2)
  AND ($3::text IS NULL OR j.kind = $3)
  AND ($4::bigint IS NULL OR j.id < $4)
ORDER BY j.id DESC
LIMIT $5
