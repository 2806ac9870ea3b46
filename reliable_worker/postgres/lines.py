"""A migration line: the numbered .sql files of one service, read and checked.

Floor 1, below the runner (`migrate`) and the snapshot (`snapshot`); imports nothing of ours. The
worker and the ledger each have a line: a directory, a table of marks and a lock of its own.

A file is called `0001_name.sql` and says in its leading comments whether it is `-- expand` (code of
the version before still works afterwards) or `-- contract`. It runs in one transaction, unless it
says `-- transactional: no`; its statements are then parted by lines that read `-- next statement`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable

# Statements are written for this name of the table of marks; a line with another one replaces it.
MARKS_TABLE = "reliable_worker_migrations"
MARKS_FILE = "marks.sql"
NEXT_STATEMENT = "-- next statement"

_FILE_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
# Unquoted everywhere, so only what needs no quotes; 40 leave room below PostgreSQL's 63 bytes.
_TABLE_NAME = re.compile(r"[a-z_][a-z0-9_]{0,40}")
_CREATES = re.compile(
    r"^\s*CREATE\s+(?:UNIQUE\s+)?(TABLE|INDEX|VIEW|SEQUENCE|MATERIALIZED\s+VIEW)\s+"
    r"(?:CONCURRENTLY\s+)?(?:IF\s+NOT\s+EXISTS\s+)?([\w.]+)",
    re.IGNORECASE | re.MULTILINE,
)


class BadMigration(ValueError):
    """A migration file that breaks the rules of its line; a defect of the package."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file: version from 1 without gaps, kind 'expand' or 'contract', text as it stands."""

    version: int
    name: str
    kind: str
    transactional: bool
    text: str

    @property
    def label(self) -> str:
        return f"{self.version:04d}_{self.name}"

    @property
    def checksum(self) -> str:
        """sha256 of the file, hexadecimal; what drift is measured against."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def statements(self) -> list[str]:
        """What is sent, one after the other: all in one where there is a transaction."""
        if self.transactional:
            return [self.text]
        parts = re.split(rf"^{NEXT_STATEMENT}\s*$", self.text, flags=re.MULTILINE)
        return [part.strip() for part in parts]

    def creates(self, *what: str) -> list[str]:
        """Names of the objects this file creates, of the given types ('INDEX') or of all."""
        found = [
            (" ".join(kind.upper().split()), name) for kind, name in _CREATES.findall(self.text)
        ]
        return [name for kind, name in found if not what or kind in what]


@dataclass(frozen=True)
class Line:
    """A line of migrations and the range of its versions that the code beside it works with.

    `minimum` is the oldest schema the code runs on, `maximum` the newest it knows. A still newer
    one is fine while everything beyond is `expand`: that is what lets an old release run on, or
    come back, after the migrations of the next one.
    """

    name: str
    directory: Traversable
    marks_table: str
    lock_key: int
    minimum: int
    maximum: int
    command: str  # what an operator calls: "reliable-worker migrate"

    def __post_init__(self) -> None:
        if not _TABLE_NAME.fullmatch(self.marks_table):
            raise BadMigration(f"not a plain table name: {self.marks_table!r}")

    @cached_property
    def migrations(self) -> tuple[Migration, ...]:
        """The files in order; raises `BadMigration` for a gap or a file that breaks the rules."""
        found = sorted(
            (_read(entry) for entry in self.directory.iterdir() if _is_migration(entry.name)),
            key=lambda migration: migration.version,
        )
        for expected, migration in enumerate(found, start=1):
            if migration.version != expected:
                raise BadMigration(f"expected version {expected}, found {migration.label}")
        return tuple(found)

    @property
    def marks_definition(self) -> str:
        """The statement that makes the table of marks."""
        shared = files("reliable_worker.postgres").joinpath("migrations", MARKS_FILE)
        return self.named(shared.read_text(encoding="utf-8"))

    def named(self, statement: str) -> str:
        """A statement about the marks, for this line's table."""
        return statement.replace(MARKS_TABLE, self.marks_table)


def _is_migration(file_name: str) -> bool:
    return file_name.endswith(".sql") and file_name != MARKS_FILE


def _read(entry: Traversable) -> Migration:
    matched = _FILE_NAME.fullmatch(entry.name)
    if matched is None:
        raise BadMigration(f"{entry.name}: a migration is called 0001_what_it_does.sql")
    text = entry.read_text(encoding="utf-8")
    header = _header(text)
    kinds = [kind for kind in ("expand", "contract") if kind in header]
    if len(kinds) != 1:
        raise BadMigration(f"{entry.name}: its head says either '-- expand' or '-- contract'")
    return Migration(
        version=int(matched[1]),
        name=matched[2],
        kind=kinds[0],
        transactional="transactional: no" not in header,
        text=text,
    )


def _header(text: str) -> set[str]:
    """The leading comment lines, without their dashes."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("--"):
            break
        lines.append(line.removeprefix("--").strip())
    return set(lines)


# Lock keys are the ASCII of "rw_migra" and the like, so that pg_locks can be read.
WORKER = Line(
    name="reliable_worker",
    directory=files("reliable_worker.postgres").joinpath("migrations"),
    marks_table=MARKS_TABLE,
    lock_key=int.from_bytes(b"rw_migra"),
    minimum=2,
    maximum=3,
    command="reliable-worker migrate",
)
