-- dead → ready, by an operator: all counts start over, the fence stays.
--
-- $1 ids bigint[] · $2 operator text · $3 details jsonb: filters and values given, for the audit
-- Rows: id, was (the state it had), one per job set going; the others are in another state.
-- Called by `jobs retry`.
WITH chosen AS MATERIALIZED (
    SELECT id, state AS was
    FROM jobs
    WHERE id = ANY($1::bigint[])
      AND state = 'dead' -- fence
    ORDER BY id
    FOR NO KEY UPDATE
),
changed AS (
    UPDATE jobs
    SET state = 'ready',
        attempts = 0,
        crashes = 0,
        refunds = 0,
        snoozes = 0,
        available_at = clock_timestamp(),
        ended_at = NULL
    FROM chosen
    WHERE jobs.id = chosen.id
    RETURNING jobs.id, chosen.was
),
audited AS (
    INSERT INTO operator_actions (operator, action, job_ids, details)
    SELECT $2::text, 'retry', array_agg(id ORDER BY id), $3::jsonb
    FROM changed
    HAVING count(*) > 0
)
SELECT id, was FROM changed ORDER BY id
