"""Does this code fit the schema it finds? The reading half of migrations.

Floor 1; imports `lines`, `statements`, `database` and the ground floor. Every process of `run` asks
`check_range` before it works; nothing here writes or waits for a lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg.raw_cursor import RawCursor
from psycopg.rows import TupleRow

from reliable_worker.jobs.errors import ReliableWorkerError
from reliable_worker.postgres import statements
from reliable_worker.postgres.database import Connection
from reliable_worker.postgres.lines import WORKER, Line, Migration


class SchemaMismatch(ReliableWorkerError):
    """The database's schema is missing, dirty, or outside the range this code works with."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What the database remembers of one file; times as text with zone."""

    version: int
    name: str
    kind: str
    checksum: str
    state: str
    started_at: str
    applied_at: str | None

    @property
    def label(self) -> str:
        return f"{self.version:04d}_{self.name}"


@dataclass(frozen=True, slots=True)
class Status:
    """A line as the database has it. `problem` is None where this code works with it."""

    marks: tuple[Mark, ...]
    pending: tuple[Migration, ...]
    drift: tuple[str, ...]
    problem: str | None
    in_progress: bool

    @property
    def version(self) -> int:
        """The newest applied version; 0 for none."""
        return max((mark.version for mark in self.marks if mark.state == "applied"), default=0)


def check_range(conn: Connection, line: Line = WORKER) -> None:
    """Raise `SchemaMismatch`, in one line, unless this code works with the schema it finds."""
    problem = status(conn, line).problem
    if problem:
        raise SchemaMismatch(problem)


def status(conn: Connection, line: Line = WORKER) -> Status:
    """Read the marks and hold them against the files; changes nothing, takes no lock."""
    marks = read_marks(conn, line)
    running = any(mark.state == "running" for mark in marks)
    in_progress = running and execute(conn, line, "holder", [line.lock_key]).fetchone() is not None
    known = {mark.version for mark in marks}
    return Status(
        marks=marks,
        pending=tuple(each for each in line.migrations if each.version not in known),
        drift=_drift(line, marks),
        problem=mismatch(line, marks, in_progress=in_progress),
        in_progress=in_progress,
    )


def mismatch(line: Line, marks: Sequence[Mark], *, in_progress: bool = False) -> str | None:
    """Why this code cannot work on a schema with these marks, in one line; None if it can."""
    if not marks:
        return f"the database has no schema: run `{line.command} up`"
    applied = max((mark.version for mark in marks if mark.state == "applied"), default=0)
    if applied < line.minimum and (in_progress or not _left_over(marks)):
        return (
            f"schema version {applied} is older than this release works with "
            f"({line.minimum} to {line.maximum}): run `{line.command} up`"
        )
    return unusable(line, marks, in_progress=in_progress)


def unusable(line: Line, marks: Sequence[Mark], *, in_progress: bool) -> str | None:
    """Why not even `up` may go on from these marks."""
    dirty = [] if in_progress else _left_over(marks)
    if dirty:
        return (
            f"the schema is dirty: migration {dirty[0].label} was begun and never finished; see "
            f"`{line.command} force {dirty[0].version}`"
        )
    versions = [mark.version for mark in marks]
    if versions != list(range(1, len(versions) + 1)):
        return f"the record of migrations has gaps ({versions}): see `{line.command} status`"
    if any(mark.version > line.maximum and mark.kind == "contract" for mark in marks):
        return (
            f"schema version {versions[-1]} is newer than this release works with "
            f"({line.minimum} to {line.maximum}): upgrade the package"
        )
    return None


def has_marks(conn: Connection, line: Line) -> bool:
    """Whether the line's table of marks exists."""
    return execute(conn, line, "objects", [[line.marks_table]]).fetchone() is not None


def read_marks(conn: Connection, line: Line) -> tuple[Mark, ...]:
    """The marks in order; none where there is no table of them."""
    if not has_marks(conn, line):
        return ()
    return tuple(Mark(*row) for row in execute(conn, line, "marks").fetchall())


def _left_over(marks: Sequence[Mark]) -> list[Mark]:
    return [mark for mark in marks if mark.state == "running"]


def _drift(line: Line, marks: Sequence[Mark]) -> tuple[str, ...]:
    """Applied files that are no longer the text that was applied."""
    files = {each.version: each for each in line.migrations}
    return tuple(
        f"{mark.label} was changed after it was applied (its checksum differs)"
        for mark in marks
        if mark.version in files and mark.checksum != files[mark.version].checksum
    )


def execute(
    conn: Connection, line: Line, name: str, params: Sequence[object] = ()
) -> psycopg.Cursor[TupleRow]:
    """Run `sql/migrate_<name>.sql` on the line's table of marks."""
    statement = line.named(statements.text(f"migrate_{name}").decode())
    return RawCursor[TupleRow](conn).execute(statement.encode(), params or None)
