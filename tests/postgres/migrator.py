"""A migrator as a process of its own, to be started together with others and killed.

`python -m tests.postgres.migrator DIRECTORY DSN` applies the line in that directory; it exits with
the codes of `reliable-worker migrate up`.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from reliable_worker.postgres import migrate
from reliable_worker.postgres.database import connect
from reliable_worker.postgres.lines import Line
from tests.fixtures.configuration import make_settings


def make_line(directory: Path, minimum: int = 1, maximum: int = 9) -> Line:
    """A line of its own beside the worker's: other marks, another lock."""
    return Line(
        name="tried",
        directory=directory,
        marks_table="tried_migrations",
        lock_key=int.from_bytes(b"rw_tried"),
        minimum=minimum,
        maximum=maximum,
        command="tried migrate",
    )


def write_line(directory: Path, files: Mapping[str, str], **bounds: int) -> Line:
    """The line of these files; a text without a kind of its own is an expand."""
    for name, text in files.items():
        kind = "" if "contract" in text else "-- expand\n"
        (directory / f"{name}.sql").write_text(kind + text, encoding="utf-8")
    return make_line(directory, **bounds)


def main(directory: str, dsn: str) -> int:
    with connect(make_settings(dsn), lane="migrate") as conn:
        try:
            applied = migrate.up(conn, make_line(Path(directory)))
        except migrate.SchemaMismatch as error:
            print(error)
            return 4
        except migrate.LockHeld as error:
            print(error)
            return 75
    print(*(each.label for each in applied))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
