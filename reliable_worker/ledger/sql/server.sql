-- What `serve` checks before it listens.
-- No parameters. Returns: connections that ordinary users may open, and whether this one may
-- enqueue jobs (null: there is no table of jobs). Called by: ledger.server.
SELECT current_setting('max_connections')::int
         - current_setting('superuser_reserved_connections')::int AS connections,
       has_table_privilege(to_regclass('jobs'), 'INSERT') AS may_enqueue
