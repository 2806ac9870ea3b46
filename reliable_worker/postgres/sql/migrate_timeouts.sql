-- The session's limits for the next migration file.
-- $1 text: lock_timeout, $2 text: statement_timeout, with their units ('2s').
-- Returns: one row, the settings as text. Called by: postgres.migrate.
SELECT set_config('lock_timeout', $1::text, false), set_config('statement_timeout', $2::text, false)
