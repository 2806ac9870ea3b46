"""The ledger's schema: its line of migrations, its snapshot, its statements.

Floor 6; imports postgres. The runner is the worker's; the line, its table of marks and its lock are
the ledger's own. After a change of the migrations run

    python -m reliable_worker.ledger.schema > reliable_worker/ledger/schema.sql
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from psycopg.raw_cursor import RawCursor
from psycopg.rows import TupleRow

from reliable_worker.postgres.database import Connection
from reliable_worker.postgres.lines import Line
from reliable_worker.postgres.snapshot import render

LEDGER = Line(
    name="reliable_ledger",
    directory=files("reliable_worker.ledger").joinpath("migrations"),
    marks_table="reliable_ledger_migrations",
    lock_key=int.from_bytes(b"rw_ledge"),
    minimum=1,
    maximum=1,
    command="reliable-ledger migrate",
)


@cache
def text(name: str) -> bytes:
    """The statement in `sql/<name>.sql`."""
    return files("reliable_worker.ledger").joinpath("sql", f"{name}.sql").read_bytes()


def run(conn: Connection, name: str, params: Sequence[object] = ()) -> list[TupleRow]:
    """All rows of a statement, under the connection's budget. Raises psycopg.Error."""
    cursor = RawCursor[TupleRow](conn).execute(text(name), params or None)
    return cursor.fetchall() if cursor.description is not None else []


if __name__ == "__main__":
    sys.stdout.write(
        render(
            LEDGER,
            "reliable_worker/ledger/schema.sql",
            "python -m reliable_worker.ledger.schema",
        )
    )
