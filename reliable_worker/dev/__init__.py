"""Floor 5: what demo, bench and tests need to run without an installed PostgreSQL."""
