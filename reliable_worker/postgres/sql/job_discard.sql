-- ready → dead, by an operator: it shall not run.
--
-- $1 ids bigint[] · $2 operator text · $3 details jsonb: filters and values given, for the audit
-- Rows: id, was (the state it had), one per job discarded; the others are in another state.
-- Called by `jobs discard`.
WITH chosen AS MATERIALIZED (
    SELECT id, state AS was
    FROM jobs
    WHERE id = ANY($1::bigint[])
      AND state = 'ready' -- fence
    ORDER BY id
    FOR NO KEY UPDATE
),
changed AS (
    UPDATE jobs
    SET state = 'dead',
        last_error = 'discarded by operator',
        ended_at = clock_timestamp()
    FROM chosen
    WHERE jobs.id = chosen.id
    RETURNING jobs.id, chosen.was
),
audited AS (
    INSERT INTO operator_actions (operator, action, job_ids, details)
    SELECT $2::text, 'discard', array_agg(id ORDER BY id), $3::jsonb
    FROM changed
    HAVING count(*) > 0
)
SELECT id, was FROM changed ORDER BY id
