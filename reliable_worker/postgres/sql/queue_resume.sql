-- End a queue's pause, by an operator.
--
-- $1 name text · $2 operator text
-- One row (name), or none: it was not paused. Called by `queues resume`, which then notifies.
WITH changed AS (
    UPDATE queues
    SET paused_at = NULL, paused_until = NULL
    WHERE name = $1::text AND name IN (SELECT p.name FROM paused_queues AS p)
    RETURNING name
),
audited AS (
    INSERT INTO operator_actions (operator, action, queue)
    SELECT $2::text, 'resume', name
    FROM changed
)
SELECT name FROM changed
