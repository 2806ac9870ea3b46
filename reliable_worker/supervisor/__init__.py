"""Floor 5, the parent process. Imports http and floor 0: it must never load libpq."""
