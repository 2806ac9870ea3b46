-- Put one job in, unless its key is taken or its payload too large as jsonb prints it.
--
-- $1 kind text, $2 payload jsonb as text, $3 idempotency_key text, $4 queue text,
-- $5 priority smallint · $6 available_at timestamptz or null: in $7 seconds (float8) from now
-- $8 max_attempts int · $9 largest payload int, in bytes
-- Always one row: bytes of the payload, and id and state of the new job, null if none was made.
-- Called by `enqueue`, inside the caller's transaction.
--
-- The size is asked here and not left to the CHECK, whose error would end that transaction.
WITH given AS MATERIALIZED (
    SELECT p.payload, octet_length(p.payload::text) AS bytes
    FROM (SELECT $2::jsonb AS payload) AS p
),
made AS (
    INSERT INTO jobs
        (idempotency_key, kind, payload, queue, priority, available_at, max_attempts)
    SELECT $3, $1, g.payload, $4, $5,
           coalesce($6::timestamptz, clock_timestamp() + make_interval(secs => $7)), $8
    FROM given AS g
    WHERE g.bytes <= $9::int
    ON CONFLICT (idempotency_key) DO NOTHING
    RETURNING id, state
)
SELECT g.bytes, m.id, m.state
FROM given AS g
LEFT JOIN made AS m ON true
