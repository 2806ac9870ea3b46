"""The statements around a job's life: putting jobs in, and looking at what is there.

Floor 1; imports `statements` and jobs. One typed function per statement, of those that the worker
itself never runs: `enqueue` uses the first part, `jobs show` and `doctor` the rest; what operators
list and change is in `operators`.
All work on a plain psycopg connection as well, inside whatever transaction it is in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg.raw_cursor import RawCursor
from psycopg.rows import TupleRow, tuple_row

from reliable_worker.postgres import statements

AnyConnection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class NewRow:
    """A job ready to be inserted: checked, its payload already text."""

    kind: str
    payload: str
    key: str
    queue: str
    priority: int
    available_at: datetime | None  # None: delay_seconds from now, by the database's clock
    delay_seconds: float
    max_attempts: int


@dataclass(frozen=True, slots=True)
class Inserted:
    """What became of a row: its payload's size, and its id and state unless its key was taken."""

    payload_bytes: int
    id: int | None
    state: str | None


@dataclass(frozen=True, slots=True)
class Existing:
    """The job that holds a key; `same` when kind and payload are those of the row offered."""

    id: int
    state: str
    same: bool
    kind: str


@dataclass(frozen=True, slots=True)
class Listed:
    """A job as `jobs list` shows it."""

    id: int
    state: str
    kind: str
    queue: str
    priority: int
    attempts: int
    max_attempts: int
    crashes: int
    available_at: datetime
    created_at: datetime
    last_error: str | None


@dataclass(frozen=True, slots=True)
class Shown(Listed):
    """A job as `jobs show` shows it: everything."""

    key: str
    fence: int
    snoozes: int
    refunds: int
    lease_owner: str | None
    lease_seconds_left: float | None
    claimed_at: datetime | None
    completed_at: datetime | None
    ended_at: datetime | None
    completed_by: str | None
    payload: str


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The server and this session, see `doctor_server.sql`."""

    version: int
    recovery: bool
    database: str
    account: str
    pid: int
    statement_timeout_ms: int
    max_connections: int
    reserved: int
    role_limit: int
    database_limit: int


def insert(conn: AnyConnection, row: NewRow, max_payload_bytes: int) -> Inserted:
    """One job, unless its key is taken or its payload too large."""
    params = (
        row.kind,
        row.payload,
        row.key,
        row.queue,
        row.priority,
        row.available_at,
        row.delay_seconds,
        row.max_attempts,
        max_payload_bytes,
    )
    return Inserted(*one(conn, "enqueue_insert", params))


def insert_many(
    conn: AnyConnection, rows: Sequence[NewRow], max_payload_bytes: int
) -> list[Inserted]:
    """What became of each row, in order; of rows alike in key all name the one that was made.

    `available_at` of each row is set.
    """
    columns = (
        [row.kind for row in rows],
        [row.payload for row in rows],
        [row.key for row in rows],
        [row.queue for row in rows],
        [row.priority for row in rows],
        [row.available_at for row in rows],
        [row.max_attempts for row in rows],
    )
    found = every(conn, "enqueue_insert_many", (*columns, max_payload_bytes))
    return [Inserted(*rest) for _, *rest in sorted(found)]


def find_existing(conn: AnyConnection, rows: Sequence[NewRow]) -> dict[int, Existing]:
    """The jobs that hold the keys of `rows`, by index into `rows`."""
    columns = (
        [row.key for row in rows],
        [row.kind for row in rows],
        [row.payload for row in rows],
    )
    found = every(conn, "enqueue_existing", columns)
    return {position - 1: Existing(*rest) for position, *rest in found}


def copy_in(conn: AnyConnection, rows: Iterable[NewRow]) -> int:
    """Stream rows, whose `available_at` is set, in by COPY and count them."""
    count = 0
    with RawCursor(conn) as cursor, cursor.copy(statements.text("enqueue_copy")) as copy:
        for row in rows:
            given = (row.key, row.kind, row.payload, row.queue, row.priority, row.available_at)
            copy.write_row((*given, row.max_attempts))
            count += 1
    return count


def clock(conn: AnyConnection) -> datetime:
    """The database's clock."""
    return _utc(one(conn, "enqueue_clock")[0])


def show_job(conn: AnyConnection, job_id: int) -> Shown | None:
    """Everything about one job."""
    row = _run(conn, "job_show", (job_id,)).fetchone()
    return None if row is None else Shown(*times(row))


def server_facts(conn: AnyConnection) -> ServerFacts:
    """The server and this session."""
    return ServerFacts(*one(conn, "doctor_server"))


def count_connections(conn: AnyConnection) -> tuple[int, int]:
    """(all client connections, the worker's own of them), without this one."""
    total, ours = one(conn, "doctor_connections")
    return total, ours


def missing_privileges(conn: AnyConnection) -> list[tuple[str, str]]:
    """(table, privilege) of what the worker needs and this account has not."""
    return [(table, privilege) for table, privilege in every(conn, "doctor_privileges")]


def _run(conn: AnyConnection, name: str, params: Sequence[object] = ()) -> psycopg.Cursor[TupleRow]:
    # A caller's connection may have a row factory of its own.
    cursor = RawCursor[TupleRow](conn, row_factory=tuple_row)
    return cursor.execute(statements.text(name), params or None)


def every(conn: AnyConnection, name: str, params: Sequence[object] = ()) -> list[TupleRow]:
    return _run(conn, name, params).fetchall()


def one(conn: AnyConnection, name: str, params: Sequence[object] = ()) -> TupleRow:
    row = _run(conn, name, params).fetchone()
    assert row is not None  # these statements answer one row whatever the tables hold
    return row


def times(row: TupleRow) -> list[Any]:
    """The row with its times, which the statement gives in UTC, marked so."""
    return [_utc(value) if isinstance(value, datetime) else value for value in row]


def _utc(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC)
