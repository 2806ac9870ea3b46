-- Indexes a failed CREATE or REINDEX CONCURRENTLY left behind: written at every INSERT, read never.
-- (One that somebody builds at this moment shows here too.)
-- No parameters. Returns: name, table_name. Called by: postgres.migrate (verify, force, and after
-- each file without a transaction).
SELECT index_class.relname::text AS name, table_class.relname::text AS table_name
FROM pg_index
JOIN pg_class AS index_class ON index_class.oid = pg_index.indexrelid
JOIN pg_class AS table_class ON table_class.oid = pg_index.indrelid
JOIN pg_namespace ON pg_namespace.oid = index_class.relnamespace
WHERE NOT pg_index.indisvalid
  AND pg_namespace.nspname = ANY (current_schemas(false))
ORDER BY 1
