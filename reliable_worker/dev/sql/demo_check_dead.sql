-- Invariant: dead are the jobs that had to die, and no others.
--
-- One row: violations bigint, an example's key
SELECT count(*), min(jobs.idempotency_key)
FROM jobs
JOIN demo_expected AS expected ON expected.key = jobs.idempotency_key
WHERE (jobs.state = 'dead') <> (expected.outcome = 'dead')
