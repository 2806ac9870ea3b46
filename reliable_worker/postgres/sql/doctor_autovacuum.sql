-- Let autovacuum care for the table again. Called by `doctor --fix`.
ALTER TABLE jobs RESET (autovacuum_enabled)
