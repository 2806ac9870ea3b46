-- The jobs with a story, for the display and the summary.
--
-- $1 keys text[]
-- One row each, in the order of the keys: key, state, attempts, max_attempts, crashes, last_error
SELECT idempotency_key, state, attempts, max_attempts, crashes, last_error
FROM jobs
WHERE idempotency_key = ANY ($1::text[])
ORDER BY array_position($1::text[], idempotency_key)
