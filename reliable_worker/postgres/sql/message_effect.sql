-- The effect of the built-in kind `message`: once per key, whatever is delivered twice.
--
-- $1 idempotency_key text, $2 message text. No rows. Committed with the completion of its job.
INSERT INTO processed_messages (idempotency_key, message)
VALUES ($1, $2)
ON CONFLICT (idempotency_key) DO NOTHING
