"""What must be shown true of the whole worker: real processes, signals and PostgreSQL."""
