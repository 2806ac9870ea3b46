"""Loads the shared fixtures; what a single folder needs stands in that folder."""

# waiting first: the others import it, and an imported module's asserts are not rewritten.
pytest_plugins = [
    "tests.fixtures.waiting",
    "tests.fixtures.commands",
    "tests.fixtures.configuration",
    "tests.fixtures.postgres",
    "tests.fixtures.faults",
]
