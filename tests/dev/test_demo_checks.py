"""The demo's invariants bite: each is broken on a real database and found, by its name."""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.resources import files
from pathlib import Path

import psycopg
import pytest
from psycopg import pq

from reliable_worker.dev import demo_checks, demo_statements
from reliable_worker.dev.demo_files import File, find, measure
from reliable_worker.postgres.database import Connection, connect
from reliable_worker.settings import Settings

SEED = 7
TABLES = ("demo_table_expected", "demo_table_files", "demo_table_effects")
STATEMENTS = sorted(
    entry.name.removesuffix(".sql")
    for entry in files("reliable_worker.dev").joinpath("sql").iterdir()
)

# A demo that went well: a message, a file, one dead job.
GOOD = """
INSERT INTO jobs (idempotency_key, kind, payload, state, fence, completed_at, ended_at) VALUES
    ('hello', 'message', '{}', 'succeeded', 1, now(), now()),
    ('file', 'demo.file', '{}', 'succeeded', 4, now(), now()),
    ('poison', 'demo.poison', '{}', 'dead', 6, NULL, now());
INSERT INTO demo_expected VALUES
    ('hello', 'succeeded', 'processed_messages'),
    ('file', 'succeeded', 'demo_effects'),
    ('poison', 'dead', NULL);
INSERT INTO processed_messages VALUES ('hello', 'hello');
INSERT INTO demo_effects VALUES ('file', 4);
"""

BROKEN = {
    "a job is gone": (
        "DELETE FROM jobs WHERE idempotency_key = 'poison'",
        "1 jobs lost or unknown, such as poison",
    ),
    "a job nobody enqueued": (
        """INSERT INTO jobs (idempotency_key, payload, state, ended_at)
        VALUES ('ghost', '{}', 'dead', now())""",
        "1 jobs lost or unknown, such as ghost",
    ),
    "a job is left": (
        "UPDATE jobs SET state = 'ready', ended_at = NULL WHERE idempotency_key = 'poison'",
        "1 jobs left unfinished, such as poison",
    ),
    "a wrong one is dead": (
        """UPDATE jobs SET state = 'dead', completed_at = NULL WHERE idempotency_key = 'hello'""",
        "1 jobs dead that should not be",
    ),
    "an effect is missing": (
        "DELETE FROM demo_effects",
        "1 effects missing, such as file",
    ),
    "a message is missing": (
        "DELETE FROM processed_messages",
        "1 effects missing, such as hello",
    ),
    "an effect came twice": (
        "INSERT INTO demo_effects VALUES ('file', 4), ('file', 4)",
        "2 effects duplicated, such as file",
    ),
    "a run that lost its lease had an effect": (
        "UPDATE demo_effects SET fence = 2",
        "1 effects without their completion, such as file",
    ),
    "a dead job had an effect": (
        "INSERT INTO demo_effects VALUES ('poison', 5)",
        "1 effects without their completion, such as poison",
    ),
    "a file's row is missing": (
        "DELETE FROM demo_files",
        "1 file rows and file jobs that do not match, such as file",
    ),
    "a fingerprint is wrong": (
        "UPDATE demo_files SET sha256 = repeat('0', 64)",
        "1 fingerprints wrong, such as file",
    ),
}


@pytest.fixture
def demo(dsn: str, settings: Callable[..., Settings]) -> Iterator[Connection]:
    """A connection to a database with the demo's tables."""
    with closing(connect(settings(dsn), lane="demo")) as conn:
        for table in TABLES:
            demo_statements.run(conn, table)
        yield conn


@pytest.fixture
def measured(demo: Connection, tmp_path: Path) -> dict[str, File]:
    """The same with the rows of a demo that went well; the file it measured, by its key."""
    (tmp_path / "file").write_text("measured\n", "utf-8")
    (file,) = find(os.fsencode(tmp_path)).files
    found = measure(file.path)
    demo.execute(GOOD)
    row = ["file", "file", found.sha256, found.bytes, found.lines, found.words, None]
    demo_statements.run(demo, "demo_file", row)
    return {"file": file}


def told(conn: Connection, measured: dict[str, File]) -> list[str]:
    found = demo_checks.violations(conn, measured, random.Random(SEED))
    return [str(violation) for violation in found]


@pytest.mark.quick
def test_a_good_demo_breaks_nothing(demo: Connection, measured: dict[str, File]) -> None:
    assert told(demo, measured) == []


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_invariant_is_found(
    what: str, demo: Connection, measured: dict[str, File]
) -> None:
    statement, violation = BROKEN[what]
    with psycopg.connect(demo.info.dsn, password=demo.info.password, autocommit=True) as conn:
        conn.execute(statement.encode())
    assert [each for each in told(demo, measured) if each.startswith(violation)]


def test_a_file_that_changed_proves_nothing(demo: Connection, measured: dict[str, File]) -> None:
    path = Path(os.fsdecode(measured["file"].path))
    path.write_text("other\n", "utf-8")
    os.utime(path, ns=(1, 1))
    assert told(demo, measured) == []
    path.unlink()
    assert told(demo, measured) == []


def test_a_connection_left_behind_is_found(
    demo: Connection, settings: Callable[..., Settings], dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert demo_checks.connections_left(demo) == []
    monkeypatch.setattr(demo_checks, "GONE_SECONDS", 0.0)
    with closing(connect(settings(dsn), lane="control", boot="b" * 32)):
        (found,) = demo_checks.connections_left(demo)
    assert str(found) == f"1 connections left behind, such as rw:{'b' * 32}:control"


@pytest.mark.parametrize("name", STATEMENTS)
def test_every_statement_is_one_and_valid(name: str, demo: Connection) -> None:
    """The server parses and analyses it on the schema, with its $n as they are."""
    result = demo.pgconn.prepare(b"", demo_statements.text(name))
    assert result.status == pq.ExecStatus.COMMAND_OK, result.error_message.decode()
    assert demo_statements.text(name).startswith(b"-- ")
