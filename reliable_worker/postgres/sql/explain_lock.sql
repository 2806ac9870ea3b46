-- Whose transaction holds a job's row, where this account may see it.
--
-- $1 id bigint
-- Rows: pid, application_name, account, state, seconds float8 (age of its transaction).
-- Called by `jobs explain`. The row's xmax names the transaction that locked or changed it last;
-- that of an ended one is nobody's.
SELECT a.pid, a.application_name, a.usename::text AS account, a.state,
       extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds
FROM jobs AS j
JOIN pg_stat_activity AS a ON a.backend_xid = j.xmax
WHERE j.id = $1::bigint
  AND a.pid <> pg_backend_pid()
