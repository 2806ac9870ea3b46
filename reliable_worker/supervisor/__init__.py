"""Floor 5: the parent process. Imports http, jobs, settings, logs and process only: it must never load libpq."""
