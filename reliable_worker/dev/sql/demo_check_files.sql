-- Invariant: every file job that succeeded has its row, and no other has.
--
-- One row: violations bigint, an example's key
SELECT count(*), min(coalesce(demo_files.key, jobs.idempotency_key))
FROM (SELECT idempotency_key FROM jobs WHERE kind = 'demo.file' AND state = 'succeeded') AS jobs
FULL JOIN demo_files ON demo_files.key = jobs.idempotency_key
WHERE demo_files.key IS NULL
   OR jobs.idempotency_key IS NULL
