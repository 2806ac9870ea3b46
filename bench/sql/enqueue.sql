-- $1 kind text, $2 count int
INSERT INTO jobs (idempotency_key, kind, payload)
SELECT $1 || '-' || n, $1, '{"n": 1}'::jsonb FROM generate_series(1, $2) AS n
