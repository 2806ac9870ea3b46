"""Floor 1, the database: connections, statements, migrations. Imports only floor 0."""
