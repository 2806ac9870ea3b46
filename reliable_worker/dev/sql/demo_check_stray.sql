-- Invariant: no effect without its completion: each belongs to a job that succeeded, and was
-- committed by the run whose fence the job ended with.
--
-- One row: violations bigint, an example's key
SELECT count(*), min(effect.key)
FROM (SELECT key, fence FROM demo_effects
      UNION ALL
      SELECT idempotency_key, NULL FROM processed_messages) AS effect
LEFT JOIN jobs ON jobs.idempotency_key = effect.key AND jobs.state = 'succeeded'
WHERE jobs.id IS NULL
   OR effect.fence <> jobs.fence
