-- Record a file as applied without running it.
-- $1 integer: version, $2 text: name, $3 text: kind, $4 text: sha256.
-- Called by: postgres.migrate (force) and, with its values written in, schema.sql.
INSERT INTO reliable_worker_migrations (version, name, kind, checksum, state, applied_at)
VALUES (
    $1::integer, $2::text, $3::text,
    $4::text,
    'applied', clock_timestamp()
)
ON CONFLICT (version) DO UPDATE
SET name = excluded.name, kind = excluded.kind, checksum = excluded.checksum, state = 'applied',
    applied_at = coalesce(reliable_worker_migrations.applied_at, excluded.applied_at)
