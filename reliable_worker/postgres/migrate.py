"""The migration runner: the writing half of migrations.

Floor 1; imports `lines`, `marks`, `database` and the ground floor. `migrate up` is a step of a
release; `run` only asks `check_range` (in `marks`). The runner serves every line (`lines.Line`).

One migrator at a time holds the line's advisory lock. Before a file its mark is committed as
'running'; it becomes 'applied' in the file's own transaction, or after the last statement of a file
that has none. A mark left 'running' by a dead migrator makes the schema dirty: nobody can know how
far that file came, so nothing runs until an operator has looked and says `force`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import psycopg
from psycopg import pq

from reliable_worker.jobs.deadline import Deadline
from reliable_worker.jobs.errors import ReliableWorkerError, describe
from reliable_worker.postgres.database import Connection
from reliable_worker.postgres.lines import WORKER, Line, Migration
from reliable_worker.postgres.marks import (
    Mark,
    SchemaMismatch,
    check_range,
    execute,
    has_marks,
    read_marks,
    status,
    unusable,
)

__all__ = [
    "Forced",
    "LockHeld",
    "MigrationFailed",
    "SchemaMismatch",
    "check_range",
    "force",
    "status",
    "up",
    "verify",
]

# A waiting ALTER TABLE makes everybody behind it wait too: two seconds is what a queue of jobs can
# stand still without anybody noticing. A lock that did not come is tried for again.
LOCK_TIMEOUT = "2s"
LOCK_TRIES = 5
# Generous, and finite: a statement that takes longer belongs into batches.
STATEMENT_TIMEOUT = "15min"
# What the client waits for a file in a transaction: four statements of the longest kind.
FILE_SECONDS = 3600.0

# CREATE INDEX CONCURRENTLY stops no write while it waits for old transactions, so it may wait; its
# lock_timeout cuts exactly that wait.
CONCURRENT_LOCK_TIMEOUT = "30min"
CONCURRENT_STATEMENT_TIMEOUT = "4h"
CONCURRENT_SECONDS = 4 * 3600.0

# The other migrator is polled so often; its release is then noticed within a fifth of a second.
LOCK_POLL_SECONDS = 0.2
# How long `up` waits for another migrator: two instances started together, not a long migration.
WAIT_SECONDS = 60.0

_BUSY = {"55P03", "40P01"}  # lock_not_available, deadlock_detected

Say = Callable[[str], None]


class MigrationFailed(ReliableWorkerError):
    """A migration, or a request about migrations, that could not be carried out."""


class LockHeld(MigrationFailed):
    """Another migrator, or a lock on a table, is in the way: try again."""


@dataclass(frozen=True, slots=True)
class Forced:
    """What `force` found in the database, and the changes of marks it made or would make."""

    found: tuple[str, ...]
    changes: tuple[str, ...]
    done: bool


def up(
    conn: Connection,
    line: Line = WORKER,
    *,
    wait_seconds: float = WAIT_SECONDS,
    say: Say = lambda text: None,
) -> list[Migration]:
    """Apply what is pending; returns the files applied now.

    `conn` is in autocommit, used for nothing else, and closed by the caller, which ends the lock.
    Raises `LockHeld`, `SchemaMismatch` (dirty, too new), `MigrationFailed`, psycopg.Error.
    """
    _lock(conn, line, wait_seconds)
    if not has_marks(conn, line):
        conn.execute(line.marks_definition.encode())
    found = status(conn, line)
    problem = unusable(line, found.marks, in_progress=False)
    if problem:
        raise SchemaMismatch(problem)
    if found.drift:
        raise MigrationFailed(f"{found.drift[0]}; nothing was applied")
    for migration in found.pending:
        say(f"applying {migration.label} ({migration.kind})")
        _apply(conn, line, migration, say)
    return list(found.pending)


def verify(conn: Connection, line: Line = WORKER) -> list[str]:
    """What is wrong although the version may fit: drift, files not applied, invalid indexes."""
    found = status(conn, line)
    pending = [f"{each.label} is not applied: run `{line.command} up`" for each in found.pending]
    return [*found.drift, *pending, *_invalid_indexes(conn, line).values()]


def force(
    conn: Connection,
    line: Line,
    version: int,
    *,
    confirmed: bool,
    wait_seconds: float = WAIT_SECONDS,
) -> Forced:
    """Declare the schema to be at `version`: marks up to it become applied, those above go.

    Metadata only, all marks at once, and only where `confirmed`; what the database holds of the
    files concerned is looked up and reported first. Checksums become those of the files. Raises
    `LockHeld`, `MigrationFailed` for a version this line does not have.
    """
    if not 0 <= version <= len(line.migrations):
        raise MigrationFailed(f"this release knows versions 0 to {len(line.migrations)}")
    _lock(conn, line, wait_seconds)
    marks = {mark.version: mark for mark in read_marks(conn, line)}
    if any(number > len(line.migrations) for number in marks):
        raise MigrationFailed("the database has marks of a newer release: force with that one")
    record = [
        each
        for each in line.migrations[:version]
        if each.version not in marks or not _same(marks[each.version], each)
    ]
    above = [each for each in line.migrations[version:] if each.version in marks]
    found = [_remains(conn, line, each) for each in [*record, *above]]
    changes = [f"{each.label}: marked applied" for each in record]
    changes += [f"{each.label}: mark removed, `up` will run it again" for each in above]
    if confirmed:
        if not has_marks(conn, line):
            conn.execute(line.marks_definition.encode())
        with conn.transaction():
            for each in record:
                execute(conn, line, "record", _facts(each))
            execute(conn, line, "forget", [version])
    return Forced(tuple(found), tuple(changes), done=confirmed)


def _apply(conn: Connection, line: Line, migration: Migration, say: Say) -> None:
    """One file, from its mark to its mark."""
    if not migration.transactional:
        execute(conn, line, "begin", _facts(migration))
        _apply_statements(conn, line, migration)
        return
    _limits(conn, line, LOCK_TIMEOUT, STATEMENT_TIMEOUT)
    for left in reversed(range(LOCK_TRIES)):
        try:
            execute(conn, line, "begin", _facts(migration))
            _apply_transaction(conn, line, migration)
        except (psycopg.Error, KeyboardInterrupt) as error:
            if not _withdrawn(conn, line, migration) or isinstance(error, KeyboardInterrupt):
                raise
            if error.sqlstate not in _BUSY:
                raise MigrationFailed(
                    f"{migration.label} failed and was rolled back: {_words(error)}"
                ) from error
            if not left:
                raise LockHeld(
                    f"{migration.label} was rolled back {LOCK_TRIES} times because a table is in "
                    f"use: {_words(error)}; try again when it is quiet"
                ) from error
        else:
            return
        say(f"{migration.label}: a table is in use, trying again")
        # jittered, so as not to meet the same periodic transaction each time
        time.sleep(random.uniform(0.2, 1.0))


def _withdrawn(conn: Connection, line: Line, migration: Migration) -> bool:
    """Take the mark back if the file's transaction was rolled back for certain.

    Asked in the same session, which is idle only after its COMMIT or ROLLBACK is done: a mark that
    is still 'running' then proves that nothing of the file is in. A lost session proves nothing.
    """
    if conn.closed or conn.info.transaction_status is not pq.TransactionStatus.IDLE:
        return False
    return execute(conn, line, "withdraw", [migration.version]).rowcount == 1


def _apply_transaction(conn: Connection, line: Line, migration: Migration) -> None:
    with conn.budget(FILE_SECONDS, f"migration {migration.label}"), conn.transaction():
        before = execute(conn, line, "transaction").fetchone()
        conn.execute(migration.text.encode())
        if execute(conn, line, "transaction").fetchone() != before:
            raise MigrationFailed(
                f"{migration.label} ends its own transaction; such a file says "
                "'-- transactional: no'. Its mark stays, see force"
            )
        _finish(conn, line, migration)


def _apply_statements(conn: Connection, line: Line, migration: Migration) -> None:
    _limits(conn, line, CONCURRENT_LOCK_TIMEOUT, CONCURRENT_STATEMENT_TIMEOUT)
    for number, statement in enumerate(migration.statements, start=1):
        try:
            with conn.budget(CONCURRENT_SECONDS, f"migration {migration.label}"):
                conn.execute(statement.encode())
        except psycopg.Error as error:
            if conn.closed:
                raise
            raise MigrationFailed(
                f"{migration.label} failed at statement {number} of {len(migration.statements)}: "
                f"{_words(error)}; the schema is dirty, see `{line.command} force "
                f"{migration.version}`"
            ) from error
    invalid = _invalid_indexes(conn, line)
    for name in migration.creates("INDEX"):
        if name in invalid:
            raise MigrationFailed(
                f"{migration.label}: {invalid[name]}; the schema is dirty, see "
                f"`{line.command} force {migration.version}`"
            )
    _finish(conn, line, migration)


def _finish(conn: Connection, line: Line, migration: Migration) -> None:
    if execute(conn, line, "finish", [migration.version]).rowcount != 1:
        raise MigrationFailed(f"the mark of {migration.label} was changed under the migration")


def _lock(conn: Connection, line: Line, wait_seconds: float) -> None:
    deadline = Deadline(wait_seconds, "wait for the migration lock")
    while execute(conn, line, "lock", [line.lock_key]).fetchone() != (True,):
        if deadline.passed:
            raise LockHeld(
                f"another migrator has held the lock for {wait_seconds:g} s; try again later"
            )
        time.sleep(LOCK_POLL_SECONDS)


def _limits(conn: Connection, line: Line, lock_timeout: str, statement_timeout: str) -> None:
    execute(conn, line, "timeouts", [lock_timeout, statement_timeout])


def _same(mark: Mark, migration: Migration) -> bool:
    return mark.state == "applied" and mark.checksum == migration.checksum


def _remains(conn: Connection, line: Line, migration: Migration) -> str:
    """What the database holds of a file, for an operator who has to judge it."""
    names = migration.creates()
    present = {name for (name,) in execute(conn, line, "objects", [names])}
    manner = (
        "one transaction, so all of it or nothing"
        if migration.transactional
        else f"{len(migration.statements)} statements without a transaction"
    )
    lists = [
        f"{word}: {', '.join(chosen)}"
        for word, chosen in (
            ("exists", [name for name in names if name in present]),
            ("missing", [name for name in names if name not in present]),
        )
        if chosen
    ]
    invalid = _invalid_indexes(conn, line)
    mine = [text for name, text in invalid.items() if name in names]
    return "; ".join([f"{migration.label}: {manner}", *lists, *mine])


def _invalid_indexes(conn: Connection, line: Line) -> dict[str, str]:
    return {
        name: f"index {name} on {table} is invalid: drop it, or REINDEX INDEX CONCURRENTLY"
        for name, table in execute(conn, line, "invalid_indexes")
    }


def _facts(migration: Migration) -> list[object]:
    return [migration.version, migration.name, migration.kind, migration.checksum]


def _words(error: psycopg.Error) -> str:
    """SQLSTATE and the server's first line, which names tables and columns."""
    if (error.sqlstate or "").startswith("22"):
        return describe(error)  # a data error quotes the value itself
    return f"{error.diag.message_primary or type(error).__name__} ({error.sqlstate})"
