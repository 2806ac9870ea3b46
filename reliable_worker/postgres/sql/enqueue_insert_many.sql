-- Put many jobs in, except those whose key is taken or whose payload is too large.
--
-- $1 kinds text[], $2 payloads jsonb as text[], $3 idempotency keys text[], $4 queues text[],
-- $5 priorities smallint[], $6 available_at timestamptz[], $7 max_attempts int[], alike in order
-- $8 largest payload int, in bytes
-- One row per job offered: its position from 1, bytes of its payload, and id and state of the new
-- job with that key, null if none was made. Of two alike in key both name the one that was made.
-- Called by `enqueue_many`, inside the caller's transaction, with the keys in order: two batches
-- with common keys then wait for each other instead of deadlocking.
WITH given AS MATERIALIZED (
    SELECT o.position, o.kind, p.payload, octet_length(p.payload::text) AS bytes,
           o.idempotency_key, o.queue, o.priority, o.available_at, o.max_attempts
    FROM unnest(
            $1::text[], $2::text[], $3::text[], $4::text[], $5::smallint[],
            $6::timestamptz[], $7::int[])
        WITH ORDINALITY AS o (kind, payload, idempotency_key, queue, priority,
            available_at, max_attempts, position)
    CROSS JOIN LATERAL (SELECT o.payload::jsonb AS payload) AS p
),
made AS (
    INSERT INTO jobs
        (idempotency_key, kind, payload, queue, priority, available_at, max_attempts)
    SELECT g.idempotency_key, g.kind, g.payload, g.queue, g.priority,
           g.available_at, g.max_attempts
    FROM given AS g
    WHERE g.bytes <= $8::int
    ORDER BY g.position
    ON CONFLICT (idempotency_key) DO NOTHING
    RETURNING id, state, idempotency_key
)
SELECT g.position, g.bytes, m.id, m.state
FROM given AS g
LEFT JOIN made AS m USING (idempotency_key)
