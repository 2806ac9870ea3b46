-- The marks of a migration line: one row per file, committed as 'running' before the file and
-- turned 'applied' with it. Made by the runner, since the first file is marked too.
CREATE TABLE IF NOT EXISTS reliable_worker_migrations (
    version    integer PRIMARY KEY CONSTRAINT migration_version_positive CHECK (version > 0),
    name       text NOT NULL,
    kind       text NOT NULL
        CONSTRAINT migration_kind_known CHECK (kind IN ('expand', 'contract')),
    checksum   text NOT NULL, -- sha256 of the file, hexadecimal
    state      text NOT NULL
        CONSTRAINT migration_state_known CHECK (state IN ('running', 'applied')),
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    applied_at timestamptz,
    CONSTRAINT migration_applied_has_time CHECK ((state = 'applied') = (applied_at IS NOT NULL))
);
