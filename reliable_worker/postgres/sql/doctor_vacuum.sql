-- Remove dead rows and learn what the table holds. Called by `doctor --fix`; blocks nobody.
VACUUM (ANALYZE) jobs
