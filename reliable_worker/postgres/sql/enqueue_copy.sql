-- The fastest way in, for volumes: a stream of rows, each complete, no key of which may be taken.
--
-- Rows on the stream: key, kind, payload as text, queue, priority, available_at, max_attempts.
-- Called by `copy_jobs`; COPY takes no parameters and cannot be prepared.
COPY jobs (idempotency_key, kind, payload, queue, priority, available_at, max_attempts) FROM STDIN
