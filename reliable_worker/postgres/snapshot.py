"""schema.sql: all migrations of a line and their marks in one file for psql.

Floor 1; imports `lines`. Written by hand nowhere: after a change of the migrations run

    python -m reliable_worker.postgres.snapshot > schema.sql

and a test holds the file to be this output, and its database to be the migrations' own.
"""

from __future__ import annotations

import re
import sys
from importlib.resources import files

from reliable_worker.postgres.lines import WORKER, Line, Migration

_HEAD = """\
-- The whole schema and the record of its migrations. On an empty database
--     psql "$DATABASE_URL" -v ON_ERROR_STOP=1 -f {path}
-- is a full installation. Made from the migrations, whose files say why things are as they are:
--     {command} > {path}
"""
_BEGIN = "BEGIN;\n"
_COMMIT = "COMMIT;\n"


def render(
    line: Line = WORKER,
    path: str = "schema.sql",
    command: str = "python -m reliable_worker.postgres.snapshot",
) -> str:
    """The snapshot's text. One transaction, interrupted by files that cannot run in one."""
    parts = [_HEAD.format(path=path, command=command), _BEGIN, line.marks_definition]
    for migration in line.migrations:
        title = f"-- {migration.label}\n"
        if migration.transactional:
            parts += [title + migration.text, _mark(line, migration)]
        else:
            statements = "\n\n".join(migration.statements) + "\n"
            parts += [_COMMIT, title + statements, _BEGIN, _mark(line, migration)]
    return "\n".join([*parts, _COMMIT])


def _mark(line: Line, migration: Migration) -> str:
    """The statement that records a file, its parameters written in.

    The values are digits, plain names and hexadecimal by `lines`' rules: nothing needs quoting.
    """
    recorded = files("reliable_worker.postgres").joinpath("sql", "migrate_record.sql")
    statement = re.sub(r"^--.*\n", "", recorded.read_text(encoding="utf-8"), flags=re.MULTILINE)
    values = (migration.version, migration.name, migration.kind, migration.checksum)
    for position, value in enumerate(values, start=1):
        literal = str(value) if isinstance(value, int) else f"'{value}'"
        statement = re.sub(rf"\${position}::\w+", literal, statement)
    return line.named(statement).rstrip() + ";\n"


if __name__ == "__main__":
    sys.stdout.write(render())
