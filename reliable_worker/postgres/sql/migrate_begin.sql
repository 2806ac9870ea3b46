-- Mark a file as running, committed before the file itself: if the migrator dies, the mark stays.
-- $1 integer: version, $2 text: name, $3 text: kind, $4 text: sha256.
-- Returns: nothing. Called by: postgres.migrate.
INSERT INTO reliable_worker_migrations (version, name, kind, checksum, state)
VALUES ($1::integer, $2::text, $3::text, $4::text, 'running')
