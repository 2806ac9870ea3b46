-- How vacuum keeps up with our tables.
--
-- Rows: name, live bigint, dead bigint (row versions, as last counted), pages int, enabled boolean
-- (autovacuum on the server and on the table). Called by `doctor`.
SELECT c.relname::text AS name,
       pg_stat_get_live_tuples(c.oid) AS live,
       pg_stat_get_dead_tuples(c.oid) AS dead,
       c.relpages AS pages,
       current_setting('autovacuum')::boolean
           AND NOT coalesce(c.reloptions @> '{autovacuum_enabled=false}', false) AS enabled
FROM pg_class AS c
WHERE c.oid IN ('jobs'::regclass, 'job_attempts'::regclass, 'worker_processes'::regclass)
ORDER BY c.relname
