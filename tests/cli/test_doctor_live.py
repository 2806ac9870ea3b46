"""doctor on what goes on: each situation provoked on a real database, its remedy, what is fixed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from reliable_worker.postgres import doctor_live, doctor_unit, store
from tests.cli.conftest import Cli
from tests.fixtures.configuration import make_settings
from tests.fixtures.waiting import wait_until
from tests.maintenance.rows import add, add_running

Connection = psycopg.Connection[Any]


def found(db: Cli, check: str, *words: str) -> tuple[str, str, str]:
    """(level, text, remedy) of the one finding of this name."""
    (one,) = [each for each in db("doctor", "--json", *words).json if each["check"] == check]
    return one["level"], one["text"], one["remedy"]


def test_an_invalid_index(db: Cli, conn: Connection) -> None:
    conn.execute(
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'jobs_dead_idx'::regclass"
    )
    level, text, remedy = found(db, "indexes")
    assert (level, text) == ("warn", "index jobs_dead_idx on jobs is invalid")
    assert "REINDEX INDEX CONCURRENTLY" in remedy


def test_a_notification_that_does_not_come_back(
    db: Cli, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler of transactions, where LISTEN stays with another session."""
    monkeypatch.setattr(doctor_live, "_NOTIFY_SECONDS", 0.1)
    monkeypatch.setattr(store, "listen", lambda conn: None)
    level, text, remedy = found(db, "notify")
    assert (level, "by their poll only (0.5 s)" in text) == ("warn", True)
    assert "point DATABASE_URL at the server itself" in remedy


@pytest.mark.parametrize(
    ("skew", "level", "words"),
    [(1.0, "ok", ""), (30.0, "warn", "30 s behind"), (-30.0, "warn", "30 s before")],
)
def test_clocks_that_differ(skew: float, level: str, words: str) -> None:
    one = doctor_live.judge_clock(skew)
    assert (one.level, words in one.text, "synchronise" in one.remedy) == (
        level,
        True,
        level == "warn",
    )


def test_a_pinned_snapshot(
    db: Cli, dsn: str, monkeypatch: pytest.MonkeyPatch, conn: Connection
) -> None:
    monkeypatch.setattr(doctor_live, "PIN_SECONDS", 0.0)
    with psycopg.connect(dsn, application_name="report") as old:
        old.execute("SELECT pg_current_xact_id()")
        level, text, remedy = found(db, "pinned")
        pid = old.info.backend_pid
    assert level == "warn"
    assert text.startswith(f"a transaction (backend {pid}: postgres report idle in transaction) is")
    assert remedy == f"end it: SELECT pg_terminate_backend({pid})"


def test_a_replication_slot_that_pins(conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that pins needs a reader or wal_level = logical: its row is made up here."""
    rows = [("slot", "left", "inactive", None, 1234)]
    monkeypatch.setattr(doctor_live, "every", lambda conn, name, params: rows)
    (one,) = doctor_live.check_pins(conn)  # type: ignore[arg-type]
    assert one.text == "replication slot left is inactive and pins 1234 transactions' dead rows"
    assert one.remedy.endswith("SELECT pg_drop_replication_slot('left')")


def test_autovacuum_switched_off_is_switched_on(db: Cli, conn: Connection) -> None:
    conn.execute("ALTER TABLE jobs SET (autovacuum_enabled = false)")
    level, text, remedy = found(db, "vacuum")
    assert (level, text) == ("warn", "autovacuum is off for jobs")
    assert remedy.startswith("as its owner: ALTER TABLE jobs RESET (autovacuum_enabled)")
    assert "fixed: autovacuum" in db("doctor", "--fix").out
    assert found(db, "vacuum")[0] == "ok"


def test_what_only_the_owner_may_fix_is_said(cli: Cli, conn: Connection) -> None:
    role = "fixer_" + conn.info.dbname
    conn.execute("ALTER TABLE jobs SET (autovacuum_enabled = false)")
    conn.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'pw'".encode())
    try:
        conn.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}".encode())
        url = f"postgresql://{role}:pw@{conn.info.host}:{conn.info.port}/{conn.info.dbname}"
        done = cli("doctor", "--fix", env={"DATABASE_URL": url})
        assert done.code == 0
        assert done.out.splitlines()[-1] == "not fixed: autovacuum, ask its owner"
    finally:
        conn.execute(f"DROP OWNED BY {role}".encode())
        conn.execute(f"DROP ROLE {role}".encode())


def test_dead_rows_are_vacuumed(db: Cli, conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_live, "DEAD_ROWS", 10)
    conn.execute("ALTER TABLE jobs SET (autovacuum_vacuum_threshold = 1000000)")
    add(conn)
    for _ in range(30):
        conn.execute("UPDATE jobs SET queue = queue || 'x'")
    # statistics come a moment after what they count
    wait_until(lambda: found(db, "vacuum")[0] == "warn", 30, "the dead rows are counted")
    level, text, remedy = found(db, "vacuum")
    assert (level, text) == ("warn", "jobs holds 30 dead rows beside 1 live ones")
    assert remedy.startswith("VACUUM (ANALYZE) jobs")
    db("doctor", "--fix")
    wait_until(lambda: found(db, "vacuum")[0] == "ok", 30, "they are gone")


def test_a_claim_that_reads_the_table(
    db: Cli, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_live, "FEW_PAGES", 0)
    add(conn)
    conn.execute("VACUUM ANALYZE jobs")
    conn.execute(f"ALTER DATABASE {conn.info.dbname} SET enable_indexscan = off".encode())
    conn.execute(f"ALTER DATABASE {conn.info.dbname} SET enable_bitmapscan = off".encode())
    level, text, remedy = found(db, "plan")
    assert (level, "reads the whole table" in text) == ("warn", True)
    assert remedy.startswith("ANALYZE jobs")


def test_a_paused_queue_is_told(db: Cli, conn: Connection) -> None:
    db("queues", "pause", "mail")
    level, text, remedy = found(db, "paused")
    assert (level, text) == ("warn", "paused: 'mail'")
    assert remedy == "reliable-worker queues resume mail"


def test_leases_that_nobody_takes_back(db: Cli, conn: Connection) -> None:
    add_running(conn, lease_seconds=-59)
    assert found(db, "stuck")[0] == "ok"
    job = add_running(conn, lease_seconds=-61)
    level, text, remedy = found(db, "stuck")
    assert level == "fail"
    assert text.startswith("1 job is running under leases that ran out more than 60 s ago")
    assert remedy.endswith(f"jobs explain {job}")
    assert db("doctor").code == 1


UNITS = [
    ("TimeoutStopSec=15s", None, "ok"),
    ("TimeoutStopSec=9", None, "fail"),
    ("TimeoutSec=1min 30s", None, "ok"),
    ("TimeoutStopSec=infinity", None, "ok"),
    ("", None, "ok"),
    ("TimeoutStopSec=15s", "TimeoutStopSec=5s", "fail"),
    ("TimeoutStopSec=5s", "TimeoutStopSec=30", "ok"),
]


@pytest.mark.parametrize(("line", "drop_in", "level"), UNITS)
def test_the_unit_s_stop_time(tmp_path: Path, line: str, drop_in: str | None, level: str) -> None:
    admin, package = tmp_path / "etc", tmp_path / "lib"
    package.mkdir()
    (package / doctor_unit.UNIT).write_text(f"[Service]\n{line}\n")
    if drop_in:
        (admin / f"{doctor_unit.UNIT}.d").mkdir(parents=True)
        (admin / f"{doctor_unit.UNIT}.d" / "stop.conf").write_text(f"[Service]\n{drop_in}\n")
    settings = make_settings("postgresql:///")
    (one,) = doctor_unit.check_unit(settings, [admin, package])
    assert one.level == level
    assert ("set TimeoutStopSec=15s in a drop-in" in one.remedy) == (level == "fail")
    assert doctor_unit.check_unit(settings, [tmp_path / "nowhere"]) == []


def test_an_operator_s_session(db: Cli, dsn: str, conn: Connection) -> None:
    """A poison job, a paused queue, a pinned xmin, a missing handler: found by two verbs alone."""
    conn.execute(
        "INSERT INTO worker_processes (boot, host, pid, role, slots, kinds, queues)"
        " VALUES ('b', 'h', 1, 'worker', 1, '{message}', '{}')"
    )
    poison = add(conn, crashes=2, last_error="killed by signal 11 (SIGSEGV)")
    missing, waiting = add(conn, kind="report"), add(conn, queue="mail")
    db("queues", "pause", "mail")
    with psycopg.connect(dsn) as old, pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor_live, "PIN_SECONDS", 0.0)
        old.execute("SELECT pg_current_xact_id()")
        warned = {each["check"] for each in db("doctor", "--json").json if each["level"] == "warn"}
    assert {"paused", "pinned", "kinds"} <= warned

    def first(job: int) -> str:
        return str(db("jobs", "explain", str(job)).out.splitlines()[0])

    assert first(poison).endswith("dead after 3: killed by signal 11 (SIGSEGV)")
    assert "queue 'mail' is paused until it is resumed" in first(waiting)
    assert "no live worker knows kind 'report'" in first(missing)
