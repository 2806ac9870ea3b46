"""doctor: each thing that keeps a worker from working is found, with its mend and exit code."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from reliable_worker.postgres import doctor
from reliable_worker.postgres.catalog import ServerFacts
from tests.cli.conftest import Cli, Done
from tests.fixtures.configuration import make_settings

Connection = psycopg.Connection[Any]
FACTS = ServerFacts(
    version=180_001,
    recovery=False,
    database="jobs",
    account="worker",
    pid=17,
    statement_timeout_ms=3000,
    max_connections=100,
    reserved=3,
    role_limit=-1,
    database_limit=-1,
)


def levels(done: Done) -> dict[str, str]:
    return {finding["check"]: finding["level"] for finding in done.json}


def found(db: Cli, check: str, *words: str) -> list[dict[str, Any]]:
    return [each for each in db("doctor", "--json", *words).json if each["check"] == check]


@pytest.mark.quick
def test_a_good_database_is_all_ok(db: Cli) -> None:
    done = db("doctor", "--json")
    assert done.code == 0
    names = {"reach", "tls", "schema", "budgets", "connections", "privileges", "notify", "clock"}
    names |= {"pinned", "vacuum", "plan", "kinds", "paused", "stuck"}
    assert levels(done) == dict.fromkeys(names, "ok")
    assert {finding["remedy"] for finding in done.json} == {""}
    text = db("doctor").out
    assert text.startswith("ok    reach        PostgreSQL ")
    assert "\x1b" not in text


def test_a_missing_schema_is_told_beside_the_rest_and_is_exit_4(cli: Cli, empty_dsn: str) -> None:
    done = cli("doctor", "--json", env={"DATABASE_URL": empty_dsn})
    assert done.code == 4
    assert levels(done)["schema"] == "fail"
    assert levels(done)["connections"] == "ok"
    assert "privileges" not in levels(done)


def test_a_schema_that_only_looks_odd_is_a_warning(db: Cli, conn: Connection) -> None:
    conn.execute("UPDATE reliable_worker_migrations SET checksum = 'x' WHERE version = 1")
    done = db("doctor", "--json")
    assert (done.code, levels(done)["schema"]) == (0, "warn")


def test_kinds_and_queues_nobody_serves_are_found(
    db: Cli, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "doctor_app.py").write_text("import reliable_worker as rw\napp = rw.App()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "doctor_app", raising=False)
    words = ("doctor", "--app", "doctor_app:app", "--json")
    assert levels(db(*words))["kinds"] == "ok"
    conn.execute(
        "INSERT INTO jobs (idempotency_key, payload, kind, queue) VALUES"
        " ('1', '{}', 'strange', 'default'), ('2', '{}', 'strange', 'default'),"
        " ('3', '{}', 'message', 'default'), ('4', '{}', 'message', 'slow')"
    )
    done = db(*words, "--queue", "default")
    texts = [(f["text"], f["remedy"]) for f in done.json if f["check"] == "kinds"]
    deploy = "deploy an application that has one (--app)"
    assert texts == [
        (
            "1 ready job of kind 'message' in queue 'slow' wait: no worker serves that queue",
            "add --queue slow",
        ),
        ("2 ready jobs of kind 'strange' in queue 'default' wait for a handler", deploy),
    ]
    assert done.code == 0
    # without an application, what live workers say counts
    (*_, last) = found(db, "kinds")
    assert (last["text"].endswith("wait: no worker is alive"), last["level"]) == (True, "warn")
    conn.execute(
        "INSERT INTO worker_processes (boot, host, pid, role, slots, kinds, queues)"
        " VALUES ('b', 'h', 1, 'worker', 1, '{message}', '{}')"
    )
    (only,) = found(db, "kinds")
    assert only["text"] == "2 ready jobs of kind 'strange' in queue 'default' wait for a handler"
    assert only["remedy"] == deploy


def test_a_missing_privilege_is_exit_1(cli: Cli, dsn: str, conn: Connection) -> None:
    role = "doctor_" + conn.info.dbname
    conn.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'pw'")
    try:
        conn.execute(f"GRANT SELECT, INSERT ON jobs, processed_messages TO {role}")
        conn.execute(f"GRANT SELECT ON reliable_worker_migrations, paused_queues TO {role}")
        conn.execute(
            "GRANT SELECT, INSERT, UPDATE, DELETE ON queues, job_attempts, operator_actions,"
            f" worker_processes TO {role}"
        )
        url = f"postgresql://{role}:pw@{conn.info.host}:{conn.info.port}/{conn.info.dbname}"
        done = cli("doctor", "--json", env={"DATABASE_URL": url})
        assert done.code == 1
        texts = [(f["text"], f["remedy"]) for f in done.json if f["level"] == "fail"]
        assert texts == [
            (
                f"{role} lacks {privilege} on jobs",
                f"as its owner: GRANT {privilege} ON jobs TO {role}",
            )
            for privilege in ("UPDATE", "DELETE")
        ]
    finally:
        conn.execute(f"DROP OWNED BY {role}")
        conn.execute(f"DROP ROLE {role}")


def test_connections_are_counted_against_every_limit() -> None:
    settings = make_settings("postgresql:///", workers=8, processes=4)
    needed = doctor.needed_connections(settings)
    assert needed == 8 + 4 * 2 + 2 + 4 * 2

    def check(connected: tuple[int, int] = (0, 0), **facts: int) -> tuple[str, str]:
        found = doctor.check_connections(
            dataclasses.replace(FACTS, **facts), connected, settings  # type: ignore[arg-type]
        )  # fmt: skip
        return found.level, found.text

    assert check()[0] == "ok"
    assert check(max_connections=needed + 3)[0] == "ok"
    assert check(max_connections=needed + 2)[0] == "fail"
    assert "role worker is 5" in check(role_limit=5)[1]
    assert check(role_limit=5)[0] == check(database_limit=0)[0] == "fail"
    assert check((80, 0))[0] == "warn"
    assert check((80, 70))[0] == "ok"


@pytest.mark.parametrize(
    ("host", "sslmode", "level"),
    [
        ("", "prefer", "ok"),
        ("/run/postgresql", "prefer", "ok"),
        ("localhost", "disable", "ok"),
        ("127.0.0.1", "prefer", "ok"),
        ("::1", "prefer", "ok"),
        ("db.example", "prefer", "warn"),
        ("10.0.0.1", "require", "warn"),
        ("db.example", "verify-ca", "warn"),
        ("db.example", "verify-full", "ok"),
    ],
)
def test_tls_is_wanted_to_other_machines(host: str, sslmode: str, level: str) -> None:
    assert doctor.check_tls(host, sslmode).level == level


def test_old_servers_standbys_poolers_and_dropped_settings_are_found() -> None:
    settings = make_settings("postgresql:///")
    old = dataclasses.replace(FACTS, version=130_012)
    standby = dataclasses.replace(FACTS, recovery=True)
    assert [doctor.check_server(f).level for f in (FACTS, old, standby)] == ["ok", "fail", "fail"]
    assert list(doctor.check_pooler(17, FACTS, settings)) == []
    pooled = dataclasses.replace(FACTS, statement_timeout_ms=0)
    by_check = {one.check: one for one in doctor.check_pooler(18, pooled, settings)}
    assert {one.level for one in by_check.values()} == {"warn"}
    assert "loses LISTEN" in by_check["pooler"].text
    assert (
        by_check["session"].remedy == "as a superuser: ALTER ROLE worker SET the timeouts instead"
    )


def test_a_password_file_for_everybody_is_a_warning(cli: Cli, dsn: str, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("pw")
    settings = make_settings(dsn, password_file=file)
    file.chmod(0o640)
    assert list(doctor.check_files(settings)) == []
    file.chmod(0o644)
    (one,) = doctor.check_files(settings)
    assert (one.level, one.remedy) == ("warn", f"chmod o= {file}")
    env = {"DATABASE_URL": dsn, "RELIABLE_WORKER_PASSWORD_FILE": str(file)}
    file.write_text(urlsplit(dsn).password or "")
    assert "fixed: password_file" in cli("doctor", "--fix", env=env).out
    assert file.stat().st_mode & 0o777 == 0o640
