-- What `doctor` wants to know of the server and of this session.
--
-- One row: version (server_version_num), recovery (a standby), database, account, pid of the
-- backend that really answers (another than the connection's own: a pooler is between),
-- statement_timeout as this session has it, in milliseconds (0: none), max_connections, reserved
-- (for superusers and for pg_use_reserved_connections), role_limit and database_limit (-1: none).
SELECT current_setting('server_version_num')::int AS version,
       pg_is_in_recovery() AS recovery,
       current_database()::text AS database,
       current_user::text AS account,
       pg_backend_pid() AS pid,
       (SELECT setting::bigint FROM pg_settings WHERE name = 'statement_timeout'),
       current_setting('max_connections')::int AS max_connections,
       current_setting('superuser_reserved_connections')::int
           + coalesce(current_setting('reserved_connections', true)::int, 0) AS reserved,
       r.rolconnlimit AS role_limit,
       d.datconnlimit AS database_limit
FROM pg_roles AS r, pg_database AS d
WHERE r.rolname = current_user
  AND d.datname = current_database()
