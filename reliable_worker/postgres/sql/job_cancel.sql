-- ready or running → cancelled, by an operator. A running job is taken from its holder: the fence
-- rises, the holder's next renewal finds nothing and its handler is cancelled. A job inside its
-- finishing transaction is waited for: it has succeeded, or is cancelled after a rollback.
--
-- $1 ids bigint[] · $2 operator text · $3 details jsonb: filters and values given, for the audit
-- Rows: id, was (the state it had), one per job cancelled; the others are in another state.
-- Called by `jobs cancel`.
WITH chosen AS MATERIALIZED (
    SELECT id, state AS was, attempts AS run, lease_owner AS owner
    FROM jobs
    WHERE id = ANY($1::bigint[])
      AND state IN ('ready', 'running') -- fence
    ORDER BY id
    FOR NO KEY UPDATE
),
changed AS (
    UPDATE jobs
    SET state = 'cancelled',
        fence = fence + CASE chosen.was WHEN 'running' THEN 1 ELSE 0 END,
        lease_owner = NULL,
        lease_until = NULL,
        ended_at = clock_timestamp()
    FROM chosen
    WHERE jobs.id = chosen.id
    RETURNING jobs.id, chosen.was, chosen.run, chosen.owner, jobs.claimed_at
),
recorded AS (
    INSERT INTO job_attempts (job_id, attempt, owner, claimed_at, outcome)
    SELECT id, run, owner, claimed_at, 'cancelled'
    FROM changed
    WHERE was = 'running'
),
audited AS (
    INSERT INTO operator_actions (operator, action, job_ids, details)
    SELECT $2::text, 'cancel', array_agg(id ORDER BY id), $3::jsonb
    FROM changed
    HAVING count(*) > 0
)
SELECT id, was FROM changed ORDER BY id
