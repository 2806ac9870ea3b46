-- Invariant: every effect that must be there is there.
--
-- One row: violations bigint, an example's key
SELECT count(*), min(key)
FROM demo_expected AS expected
WHERE (effect = 'demo_effects'
       AND NOT EXISTS (SELECT FROM demo_effects WHERE demo_effects.key = expected.key))
   OR (effect = 'processed_messages'
       AND NOT EXISTS (SELECT FROM processed_messages WHERE idempotency_key = expected.key))
