-- Invariant: the jobs in the queue are exactly those enqueued.
--
-- One row: violations bigint, an example's key
SELECT count(*), min(coalesce(expected.key, jobs.idempotency_key))
FROM demo_expected AS expected
FULL JOIN jobs ON jobs.idempotency_key = expected.key
WHERE expected.key IS NULL
   OR jobs.id IS NULL
