-- Who is connected, without ourselves.
--
-- One row: total client connections, and of these the worker's own (named rw:…), which are part
-- of what it needs. Called by `doctor`.
SELECT count(*) AS total,
       count(*) FILTER (WHERE application_name LIKE 'rw:%') AS ours
FROM pg_stat_activity
WHERE backend_type = 'client backend'
  AND pid <> pg_backend_pid()
