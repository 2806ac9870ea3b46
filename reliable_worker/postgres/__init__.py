"""Floor 1: the database: connections, statements, migrations. Imports jobs, settings and logs only."""
