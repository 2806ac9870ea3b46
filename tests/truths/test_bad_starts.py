"""Shows what `run` does with what it cannot work with: one line and the right exit code."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.fixtures.commands import ROOT, Fleet
from tests.fixtures.waiting import wait_until

Start = Callable[..., Fleet]
SECONDS = 30.0
WRONG = "wr0ng-passw0rd-canary"


def refused(fleet: Fleet, code: int) -> str:
    """The one line on stderr of a run that ended with `code`."""
    assert fleet.wait(SECONDS) == code
    lines = fleet.stderr().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("reliable-worker: ")
    return lines[0]


def test_a_missing_schema_is_exit_4(fleet: Start, empty_dsn: str) -> None:
    line = refused(fleet(database_url=empty_dsn), 4)
    assert "migrate up" in line
    with psycopg.connect(empty_dsn) as conn:
        tables = conn.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
        assert tables.fetchone() == (0,)  # run never migrates


DIRTY = "UPDATE {marks} SET state = 'running', applied_at = NULL WHERE version = 1"
NEWER = (
    "INSERT INTO {marks} (version, name, kind, checksum, state, applied_at)"
    " VALUES (9999, 'future', 'contract', repeat('0', 64), 'applied', now())"
)


@pytest.mark.parametrize("change", [DIRTY, NEWER])
def test_a_dirty_or_newer_schema_is_exit_4(
    fleet: Start, conn: psycopg.Connection[Any], change: str
) -> None:
    row = conn.execute(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE '%migrations%'"
    ).fetchone()
    assert row is not None
    conn.execute(change.format(marks=row[0]))
    assert refused(fleet(), 4)


@pytest.mark.parametrize("url", ["postgresql://[half", "host=x port=notanumber", "nonsense"])
def test_a_malformed_url_is_exit_2_and_never_echoed(fleet: Start, url: str) -> None:
    line = refused(fleet(database_url=url), 2)
    assert "DATABASE_URL" in line
    assert url not in line


def test_settings_that_do_not_fit_are_exit_2(fleet: Start) -> None:
    line = refused(fleet(lease_seconds=30, renew_seconds=25), 2)
    assert "renew_seconds" in line


def test_a_wrong_password_is_waited_for_and_never_told(
    fleet: Start, dsn: str, conn: psycopg.Connection[Any]
) -> None:
    wrong = re.sub(r"://([^:@/]+)(:[^@]*)?@", rf"://\1:{WRONG}@", dsn)
    assert WRONG in wrong
    running = fleet(database_url=wrong)
    failed = running.wait_event("claim_failed", SECONDS)
    assert failed["reason"] == "infrastructure"
    assert not running.find("supervisor_ready")
    running.terminate()
    assert running.wait(SECONDS) in (0, 1)
    said = running.stderr() + str(running.events)
    assert WRONG not in said


def test_a_database_that_comes_later_is_waited_for(fleet: Start, empty_dsn: str) -> None:
    """Named before it exists: the run is there first, and works as soon as the database is."""
    name = "later_" + empty_dsn.rsplit("/", 1)[1]
    later = empty_dsn.rsplit("/", 1)[0] + "/" + name
    running = fleet(database_url=later)
    running.wait_event("claim_failed", SECONDS)
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}_made")
        with psycopg.connect(f"{later}_made", autocommit=True) as fresh:
            fresh.execute((ROOT / "schema.sql").read_bytes())
        conn.execute(f"ALTER DATABASE {name}_made RENAME TO {name}")
        try:
            running.wait_event("supervisor_ready", SECONDS)
            running.terminate()
            assert running.wait(SECONDS) == 0
        finally:
            running.kill_all()
            wait_until(lambda: not running.processes(), SECONDS, "no process")
            conn.execute(f"DROP DATABASE {name} WITH (FORCE)")
