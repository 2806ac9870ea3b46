-- The dead jobs.
--
-- One row each: key
SELECT idempotency_key
FROM jobs
WHERE state = 'dead'
ORDER BY idempotency_key
