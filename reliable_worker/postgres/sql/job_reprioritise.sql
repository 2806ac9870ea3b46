-- Another priority for jobs that wait, by an operator; a running one has had its turn.
--
-- $1 ids bigint[] · $2 operator text · $3 details jsonb: filters and values given, for the audit
-- $4 priority smallint, 0 to 9
-- Rows: id, was (the state it had), one per job changed; the others are in another state.
-- Called by `jobs reprioritise`.
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
    SET priority = $4::smallint
    FROM chosen
    WHERE jobs.id = chosen.id
    RETURNING jobs.id, chosen.was
),
audited AS (
    INSERT INTO operator_actions (operator, action, job_ids, details)
    SELECT $2::text, 'reprioritise', array_agg(id ORDER BY id), $3::jsonb
    FROM changed
    HAVING count(*) > 0
)
SELECT id, was FROM changed ORDER BY id
