-- date_running: give a claim time to running rows that plain SQL wrote without one.
-- Called by maintenance/expire.py when oldest_running saw such rows. Every scan of running rows
-- goes by claimed_at; undated rows would stay running for ever. Who holds them does not change.
-- Rows: id of each row dated
WITH undated AS MATERIALIZED (
    SELECT id
    FROM jobs
    WHERE state = 'running'
        AND claimed_at IS NULL -- fence
    ORDER BY id + 0
    FOR NO KEY UPDATE SKIP LOCKED
)

UPDATE jobs
SET claimed_at = clock_timestamp()
FROM undated
WHERE jobs.id = undated.id
RETURNING jobs.id
