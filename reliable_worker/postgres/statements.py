"""The `.sql` files: read once, run by name with native `$1` parameters.

Floor 1; imports `jobs`. One statement per file in `sql/`, valid as written, so that it can be read,
PREPAREd and explained with psql exactly as it runs here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from itertools import dropwhile
from typing import Any

import psycopg
from psycopg.raw_cursor import RawCursor
from psycopg.rows import TupleRow

from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.events import emit

# Before the statement as it stands: what is explained is what is run.
_EXPLAIN = b"EXPLAIN (FORMAT JSON) "


@cache
def text(name: str) -> bytes:
    """The statement in `sql/<name>.sql` without its opening comment.

    That is for readers, not for the wire: it would hide the statement in pg_stat_activity, and its
    arrows have no place in a database encoded as LATIN1. Bytes: psycopg sends them as they are.
    """
    whole = files("reliable_worker.postgres").joinpath("sql", f"{name}.sql").read_text("utf-8")
    lines = dropwhile(lambda line: line.startswith("--"), whole.splitlines(keepends=True))
    return "".join(lines).encode()


def run(
    conn: psycopg.Connection[Any], name: str, params: Sequence[object] = ()
) -> psycopg.Cursor[TupleRow]:
    """Execute a statement under the connection's budget; raises psycopg.Error."""
    cursor: psycopg.Cursor[TupleRow] = RawCursor(conn)
    sent_at = boottime()
    try:
        return cursor.execute(text(name), params or None)
    finally:  # a statement that was cut is the most telling of all
        took = boottime() - sent_at
        lane = getattr(conn, "lane", "other")
        emit("query_done", "debug", statement=name, lane=lane, duration_seconds=took)


def plan(conn: psycopg.Connection[Any], name: str, params: Sequence[object]) -> Any:
    """How the server would carry a statement out with these parameters, as EXPLAIN's JSON."""
    explained = _EXPLAIN + text(name)
    row = RawCursor[TupleRow](conn).execute(explained, params).fetchone()
    assert row is not None
    return row[0][0]["Plan"]
