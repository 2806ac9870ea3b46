-- Invariant: no job is left.
--
-- One row: violations bigint, an example's key
SELECT count(*), min(idempotency_key)
FROM jobs
WHERE state NOT IN ('succeeded', 'dead')
