-- backends: which dead processes still have a server process of theirs at work.
-- Called by maintenance/obituary.py before each pass: a claim can commit after the process that
-- sent it was reaped, so an obituary ends only with a pass begun after its last backend was gone.
-- A connection pooler keeps an idle backend under its last client's name; one that has been idle
-- for $2 seconds sends no claim of the dead process any more.
-- $1 text[]: boot ids
-- $2 float8: seconds of idleness after which a backend no longer counts
-- Rows: boot, one row per boot id that has a backend
SELECT DISTINCT listed.boot
FROM unnest($1::text[]) AS listed (boot)
INNER JOIN pg_stat_activity AS backend
    ON starts_with(backend.application_name, 'rw:' || listed.boot || ':')
WHERE backend.state IS DISTINCT FROM 'idle'
    OR backend.state_change >= clock_timestamp() - make_interval(secs => $2::float8)
