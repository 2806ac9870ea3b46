-- End the backend that may still hold an unfinished COMMIT of ours; by pid and start, since a pid
-- is used again.
--
-- $1 pid int, $2 backend_start text (as `verify_transaction` read it)
-- One row per backend told to end; none: it is gone.
SELECT pg_terminate_backend(a.pid) AS told
FROM pg_stat_get_activity($1::int) AS a
WHERE a.backend_start = $2::timestamptz
