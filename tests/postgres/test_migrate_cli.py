"""`reliable-worker migrate` says what the runner found, with the specified exit codes."""

import json
import subprocess
import sys

import psycopg
import pytest

from reliable_worker.cli.main import INTERRUPTED
from reliable_worker.postgres.lines import WORKER
from tests.fixtures.commands import ROOT, clean_environment, run_cli
from tests.fixtures.waiting import wait_until

NEWEST = WORKER.migrations[-1]


def migrate(dsn: str, *words: str) -> subprocess.CompletedProcess[str]:
    return run_cli(["migrate", *words], {"DATABASE_URL": dsn})


@pytest.mark.quick
def test_up_installs_and_status_is_clean(empty_dsn: str) -> None:
    before = migrate(empty_dsn, "status")
    assert (before.returncode, before.stderr) == (4, "")
    assert "the database has no schema: run `reliable-worker migrate up`" in before.stdout
    up = migrate(empty_dsn, "up")
    assert (up.returncode, up.stderr) == (0, "")
    assert up.stdout.splitlines() == [
        *(f"applying {each.label} ({each.kind})" for each in WORKER.migrations),
        f"schema version {WORKER.maximum}",
    ]
    again = migrate(empty_dsn, "up", "--json")
    assert (again.returncode, json.loads(again.stdout)) == (
        0,
        {"applied": [], "version": WORKER.maximum},
    )
    status = migrate(empty_dsn, "status")
    assert status.returncode == 0
    assert "0001_jobs       expand  applied" in status.stdout
    assert f"schema version {WORKER.maximum} fits this release" in status.stdout
    assert migrate(empty_dsn, "verify").returncode == 0


def test_status_for_programs(dsn: str) -> None:
    done = migrate(dsn, "status", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["version"], found["problem"]) == (0, WORKER.maximum, None)
    assert (found["pending"], found["drift"], found["in_progress"]) == ([], [], False)
    mark, *_ = found["migrations"]
    assert (mark["name"], mark["kind"], mark["state"]) == ("jobs", "expand", "applied")


def test_a_dirty_schema_and_the_way_out(dsn: str, conn: psycopg.Connection) -> None:
    conn.execute(
        "UPDATE reliable_worker_migrations SET state = 'running', applied_at = NULL"
        " WHERE version = %s",
        [WORKER.maximum],
    )
    up = migrate(dsn, "up")
    assert (up.returncode, up.stdout) == (4, "")
    assert up.stderr.startswith(f"reliable-worker: the schema is dirty: migration {NEWEST.label} ")
    assert len(up.stderr.splitlines()) == 1
    assert migrate(dsn, "status").returncode == 4
    assert migrate(dsn, "verify").returncode == 4
    shown = migrate(dsn, "force", str(WORKER.maximum))
    assert shown.returncode == 2
    assert f"{NEWEST.label}: one transaction, so all of it or nothing" in shown.stdout
    assert "nothing was changed: give --yes" in shown.stdout
    assert migrate(dsn, "status").returncode == 4
    assert migrate(dsn, "force", str(WORKER.maximum), "--yes").returncode == 0
    assert migrate(dsn, "status").returncode == 0


def test_drift(dsn: str, conn: psycopg.Connection) -> None:
    conn.execute("UPDATE reliable_worker_migrations SET checksum = 'other'")
    for verb in ("up", "verify"):
        done = migrate(dsn, verb)
        assert done.returncode == 1
        assert "0001_jobs was changed after it was applied" in done.stdout + done.stderr


def test_a_schema_from_the_future(dsn: str, conn: psycopg.Connection) -> None:
    conn.execute(
        "INSERT INTO reliable_worker_migrations (version, name, kind, checksum, state, applied_at)"
        " VALUES (%s, 'next', 'contract', '', 'applied', now())",
        [WORKER.maximum + 1],
    )
    for verb in ("up", "status", "verify"):
        done = migrate(dsn, verb)
        assert done.returncode == 4
        assert (
            f"this release works with ({WORKER.minimum} to {WORKER.maximum})"
            in done.stdout + done.stderr
        )


def test_another_migrator(dsn: str, conn: psycopg.Connection) -> None:
    conn.execute("SELECT pg_advisory_lock(%s)", [int.from_bytes(b"rw_migra")])
    done = migrate(dsn, "up", "--wait", "0")
    assert done.returncode == 75
    assert "another migrator" in done.stderr


def test_a_stopped_migrate_leaves_nothing(empty_dsn: str) -> None:
    """SIGTERM, as `systemctl stop` sends it, while another transaction holds what it needs."""
    with psycopg.connect(empty_dsn) as blocker, psycopg.connect(empty_dsn) as looking:
        looking.autocommit = True
        blocker.execute("CREATE TABLE processed_messages ()")
        process = subprocess.Popen(
            [sys.executable, "-m", "reliable_worker", "migrate", "up"],
            env=clean_environment(DATABASE_URL=empty_dsn),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        )
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        try:
            wait_until(lambda: looking.execute(waiting).fetchone(), 30, "the migration waits")
        finally:
            process.terminate()
            process.communicate(timeout=30)
        assert process.returncode == INTERRUPTED
        marks = looking.execute("SELECT count(*) FROM reliable_worker_migrations").fetchone()
        assert marks == (0,)
        blocker.rollback()
    assert migrate(empty_dsn, "up").returncode == 0


@pytest.mark.parametrize(
    "words", [["up", "--wait", "-1"], ["up", "--wait", "nan"], ["force"], ["force", "x"], []]
)
def test_usage(words: list[str]) -> None:
    done = migrate("postgresql:///nowhere", *words)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_no_database() -> None:
    done = migrate("postgresql://127.0.0.1:1/nowhere", "status")
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
