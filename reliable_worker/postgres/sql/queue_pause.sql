-- Pause a queue, by an operator: no claim takes from it until then; what runs goes on.
--
-- $1 name text · $2 seconds float8, null: until it is resumed · $3 operator text
-- One row: paused_until (without zone, in UTC; null: until resumed).
-- Called by `queues pause`. A pause in force is replaced.
WITH changed AS (
    INSERT INTO queues (name, paused_at, paused_until)
    VALUES (
        $1::text, clock_timestamp(),
        clock_timestamp() + $2::float8 * interval '1 second'
    )
    ON CONFLICT (name) DO UPDATE
    SET paused_at = excluded.paused_at, paused_until = excluded.paused_until
    RETURNING name, paused_until
),
audited AS (
    INSERT INTO operator_actions (operator, action, queue, details)
    SELECT $3::text, 'pause', name, jsonb_build_object('seconds', $2::float8)
    FROM changed
)
SELECT paused_until AT TIME ZONE 'UTC' AS paused_until FROM changed
