-- What keeps vacuum from removing dead rows, oldest first.
--
-- $1 seconds float8: younger ones are left out
-- Rows: what ('transaction', 'prepared', 'slot'), name (backend pid, identifier or slot), who,
-- seconds float8 (its age; null for a slot, whose age is not kept), xids bigint (behind the
-- present). Called by `doctor`. Transactions of other accounts show only to pg_monitor.
SELECT p.what, p.name, p.who, p.seconds, p.xids
FROM (
    SELECT 'transaction' AS what, a.pid::text AS name,
           concat_ws(' ', a.usename, a.application_name, a.state) AS who,
           extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds,
           greatest(age(a.backend_xmin), age(a.backend_xid))::bigint AS xids
    FROM pg_stat_activity AS a
    WHERE a.pid <> pg_backend_pid()
      AND a.datname = current_database()
      AND a.backend_type = 'client backend'
      AND a.xact_start < clock_timestamp() - $1::float8 * interval '1 second'
    UNION ALL
    SELECT 'prepared', x.gid, x.owner::text,
           extract(epoch FROM clock_timestamp() - x.prepared)::float8, age(x.transaction)::bigint
    FROM pg_prepared_xacts AS x
    WHERE x.database = current_database()
      AND x.prepared < clock_timestamp() - $1::float8 * interval '1 second'
    UNION ALL
    SELECT 'slot', s.slot_name::text, CASE WHEN s.active THEN 'active' ELSE 'inactive' END,
           NULL, greatest(age(s.xmin), age(s.catalog_xmin))::bigint
    FROM pg_replication_slots AS s
    WHERE coalesce(s.xmin, s.catalog_xmin) IS NOT NULL
      AND NOT s.active
) AS p
ORDER BY p.seconds DESC NULLS LAST
LIMIT 20
