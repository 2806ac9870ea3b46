-- What the worker must be allowed to do and is not.
--
-- One row per missing privilege: table, privilege. Called by `doctor`.
SELECT n.name, n.privilege
FROM (VALUES
    ('jobs', 'SELECT'), ('jobs', 'INSERT'), ('jobs', 'UPDATE'),
    ('processed_messages', 'SELECT'), ('processed_messages', 'INSERT')
) AS n (name, privilege)
WHERE NOT has_table_privilege(n.name, n.privilege)
