-- Which transaction and which backend this is, asked just before COMMIT: a handler's statement may
-- have ended the transaction that holds the completion and begun another.
--
-- One row: xid text (null: none begun), pid int, backend_start text (names the backend for
-- `terminate_backend` should the reply to COMMIT be lost).
SELECT pg_current_xact_id_if_assigned()::text AS xid,
       a.pid,
       a.backend_start::text AS backend_start
FROM pg_stat_get_activity(pg_backend_pid()) AS a
