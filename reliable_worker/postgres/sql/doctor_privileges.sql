-- What the worker must be allowed to do and is not.
--
-- One row per missing privilege: table, privilege. Called by `doctor`, on a schema that fits.
SELECT n.name, p.privilege
FROM (VALUES
    ('jobs', '{SELECT,INSERT,UPDATE,DELETE}'::text[]),
    ('processed_messages', '{SELECT,INSERT}'),
    ('queues', '{SELECT,INSERT,UPDATE}'),
    ('paused_queues', '{SELECT}'),
    ('job_attempts', '{SELECT,INSERT,DELETE}'),
    ('operator_actions', '{SELECT,INSERT,DELETE}'),
    ('worker_processes', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('reliable_worker_migrations', '{SELECT}')
) AS n (name, privileges)
CROSS JOIN LATERAL unnest(n.privileges) WITH ORDINALITY AS p (privilege, place)
WHERE NOT has_table_privilege(n.name, p.privilege)
ORDER BY n.name, p.place
