"""The fence matrix: what one writing statement does to rows of every situation, for whoever asks.

A plain function over a statement's text, so that a mutant of the text is tried as easily as the
text itself. Every cell is a savepoint in one transaction, which is rolled back in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg import errors
from psycopg.raw_cursor import RawCursor
from psycopg.rows import dict_row
from psycopg.types.string import StrDumper

Row = dict[str, Any]
Conn = psycopg.Connection[Any]

BOOT, OTHER_BOOT = "b" * 32, "c" * 32
OWNER, OTHER_OWNER, FOREIGN_OWNER = f"{BOOT}.0", f"{BOOT}.1", f"{OTHER_BOOT}.0"
FENCE = 7
MAX_ATTEMPTS = 5

INSERT = "INSERT INTO jobs (idempotency_key, payload, {}) VALUES (%s, '{{}}', {})"
# Times as SQL, by the database's clock.
PAST, FUTURE = "now() - interval '1 hour'", "now() + interval '1 hour'"
LEASE = {"state": "'running'", "lease_owner": f"'{OWNER}'", "claimed_at": PAST}
LIVE, LAPSED = {**LEASE, "lease_until": FUTURE}, {**LEASE, "lease_until": PAST}
SUCCEEDED = {"state": "'succeeded'", "completed_at": PAST, "ended_at": PAST}
DEAD = {"state": "'dead'", "ended_at": PAST}
SPENT = {"attempts": str(MAX_ATTEMPTS)}

SITUATIONS: dict[str, dict[str, str]] = {
    "ready": {},
    "ready, scheduled": {"available_at": FUTURE},
    "ready, suspect": {"crashes": "1"},
    "ready, exhausted": SPENT,
    "ready, suspect, exhausted": {"crashes": "1", **SPENT},
    "running": LIVE,
    "running, last attempt": {**LIVE, **SPENT},
    "running, crashed before": {**LIVE, "crashes": "2"},
    "running, undated": {**LIVE, "claimed_at": "NULL"},
    "expired": LAPSED,
    "expired, last attempt": {**LAPSED, **SPENT},
    "expired, last attempt, no error": {**LAPSED, **SPENT, "last_error": "NULL"},
    "succeeded": SUCCEEDED,
    "succeeded, last attempt": {**SUCCEEDED, **SPENT},
    "dead": DEAD,
    "dead, last attempt": {**DEAD, **SPENT},
    "cancelled": {"state": "'cancelled'", "ended_at": PAST},
    "ended just now, succeeded": {**SUCCEEDED, "ended_at": "now()"},
    "ended just now, dead": {**DEAD, "ended_at": "now()"},
    "ended just now, cancelled": {"state": "'cancelled'", "ended_at": "now()"},
}
# What `changes` says of a row that is deleted.
GONE: Mapping[str, object] = {"gone": True}
# What every row has unless its situation says otherwise: nothing at its default, so that a
# statement that clears a column is seen to do so.
COMMON = {
    "attempts": "2",
    "max_attempts": str(MAX_ATTEMPTS),
    "fence": str(FENCE),
    "available_at": PAST,
    "last_error": "'an earlier failure'",
    "refunds": "1",
    "snoozes": "1",
}


@dataclass(frozen=True, slots=True)
class Asker:
    """Who calls the statement: an owner's name and a fence."""

    name: str
    owner: str
    fence: int


HOLDER = Asker("the holder", OWNER, FENCE)
ASKERS = (
    HOLDER,
    Asker("another slot of its process", OTHER_OWNER, FENCE),
    Asker("another process", FOREIGN_OWNER, FENCE),
    Asker("an older fence", OWNER, FENCE - 1),
    Asker("a newer fence", OWNER, FENCE + 1),
)


@dataclass(frozen=True, slots=True)
class Within:
    """An expected time: so many seconds from now, at most `spread` later."""

    seconds: float
    spread: float = 0.0

    def fits(self, value: datetime | None, now: datetime) -> bool:
        # a minute either way: the cell may run on a very busy machine
        slack = timedelta(seconds=60)
        if value is None:
            return False
        earliest = now + timedelta(seconds=self.seconds) - slack
        return earliest <= value <= earliest + 2 * slack + timedelta(seconds=self.spread)


@dataclass(frozen=True, slots=True)
class Verb:
    """One writing statement and what it must do.

    `params(asker, id)`: what it is called with about a row. `touches(row, named, asker)`: whether
    that row must change, `named` being whether the call names it. `changes(row)`: the columns that
    then change, and to what; all others must stay.
    """

    statement: str
    params: Callable[[Asker, int], Sequence[object]]
    touches: Callable[[Row, bool, Asker], bool]
    changes: Callable[[Row], Mapping[str, object]]
    askers: Sequence[Asker] = ASKERS


def mismatches(conn: Conn, verb: Verb, text: bytes) -> list[str]:
    """Every cell in which `text`, called as `verb`, does not do what it must; empty is right."""
    found = []
    # Parameters that a mutant no longer mentions must have a type all the same.
    conn.adapters.register_dumper(str, StrDumper)
    with rolled_back(conn):
        rows = populate(conn)
        for asker in verb.askers:
            for row in rows:
                cell = f"{row['idempotency_key']}, asked by {asker.name}"
                with rolled_back(conn):
                    try:
                        RawCursor(conn).execute(text, verb.params(asker, row["id"]))
                    except errors.CheckViolation as error:
                        # the table's own constraint is the second line; the fence is the first
                        found.append(f"{cell}: {error.diag.constraint_name} had to refuse it")
                        continue
                    after, now = read(conn)
                expected = [
                    {**old, **verb.changes(old)}
                    if verb.touches(old, old["id"] == row["id"], asker)
                    else old
                    for old in rows
                ]
                expected = [one for one in expected if "gone" not in one]
                found += [f"{cell}: {text}" for text in differences(expected, after, now)]
    return found


def differences(expected: Sequence[Row], after: Sequence[Row], now: datetime) -> list[str]:
    """Over all rows: a statement about one row must leave its neighbours alone."""
    if [row["id"] for row in expected] != [row["id"] for row in after]:
        return ["rows came or went"]
    return [
        f"{column} of {row['idempotency_key']} is {got[column]!r}, not {value!r}"
        for row, got in zip(expected, after, strict=True)
        for column, value in row.items()
        if not (value.fits(got[column], now) if isinstance(value, Within) else value == got[column])
    ]


def populate(conn: Conn) -> list[Row]:
    """Two rows of each situation: the one a call names, and its twin of the same owner and fence.

    Returns all rows; the key tells the situation.
    """
    for name, situation in SITUATIONS.items():
        for twin in ("", " (twin)"):
            values = {**COMMON, **situation}
            insert = INSERT.format(", ".join(values), ", ".join(values.values()))
            conn.execute(insert.encode(), [name + twin])
    return read(conn)[0]


def read(conn: Conn) -> tuple[list[Row], datetime]:
    """Every row, and the database's time."""
    with conn.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute("SELECT * FROM jobs ORDER BY id").fetchall()
        moment = cursor.execute("SELECT clock_timestamp() AS now").fetchone()
    assert moment is not None
    return rows, moment["now"]


@contextmanager
def rolled_back(conn: Conn) -> Iterator[None]:
    """A transaction or a savepoint whose work is undone."""
    with conn.transaction(force_rollback=True):
        yield
