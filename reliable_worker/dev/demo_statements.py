"""Floor 5: the demo's own statements, the `.sql` files of `dev/sql`. May import postgres and below.

Like the worker's own they are valid as written and take `$1` parameters; handlers get theirs with
the placeholders that `job.effect` takes.
"""

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import psycopg
from psycopg.raw_cursor import RawCursor
from psycopg.rows import TupleRow

# The name in demo_create.sql and demo_drop.sql. An identifier cannot be a parameter, so the number
# of a demo is appended to it: digits, nothing that needs quotes.
DATABASE = "reliable_worker_demo"


@cache
def text(name: str) -> bytes:
    """The statement in `sql/<name>.sql`."""
    return files("reliable_worker.dev").joinpath("sql", f"{name}.sql").read_bytes()


def run(
    conn: psycopg.Connection[Any], name: str, params: Sequence[object] = ()
) -> psycopg.Cursor[TupleRow]:
    """Execute a statement under the connection's budget; raises psycopg.Error."""
    return RawCursor[TupleRow](conn).execute(text(name), params or None)


def row(conn: psycopg.Connection[Any], name: str, params: Sequence[object] = ()) -> dict[str, Any]:
    """The one row of a statement, by column names; raises psycopg.Error."""
    cursor = run(conn, name, params)
    (values,) = cursor.fetchall()
    return {
        column.name: value for column, value in zip(cursor.description or (), values, strict=True)
    }


def run_for(conn: psycopg.Connection[Any], name: str, number: int) -> None:
    """Execute demo_create or demo_drop for the database of the demo with that number."""
    conn.execute(text(name).replace(DATABASE.encode(), database(number).encode()))


def database(number: int) -> str:
    """The name of a demo's database."""
    return f"{DATABASE}_{number:016x}"


@cache
def effect(name: str) -> str:
    """A statement for `job.effect`: its parameters, each used once and in order, as `%s`."""
    lines = text(name).decode().splitlines()
    return re.sub(r"\$\d", "%s", "\n".join(line for line in lines if not line.startswith("--")))
