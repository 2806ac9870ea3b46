"""doctor: each thing that keeps a worker from working is found, with its mend and exit code."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

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


@pytest.mark.quick
def test_a_good_database_is_all_ok(db: Cli) -> None:
    done = db("doctor", "--json")
    assert done.code == 0
    names = {"reach", "tls", "schema", "budgets", "connections", "privileges"}
    assert levels(done) == dict.fromkeys(names, "ok")
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
    texts = [finding["text"] for finding in done.json if finding["check"] == "kinds"]
    assert texts == [
        "1 ready job of kind 'message' wait in queue 'slow', which is not served: add --queue",
        "2 ready jobs of kind 'strange' in queue 'default' wait for a handler: deploy one",
    ]
    assert done.code == 0
    assert "kinds" not in levels(db("doctor", "--json"))


def test_a_missing_privilege_is_exit_1(cli: Cli, dsn: str, conn: Connection) -> None:
    role = "doctor_" + conn.info.dbname
    conn.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'pw'")
    try:
        conn.execute(f"GRANT SELECT, INSERT ON jobs, processed_messages TO {role}")
        conn.execute(f"GRANT SELECT ON reliable_worker_migrations TO {role}")
        url = f"postgresql://{role}:pw@{conn.info.host}:{conn.info.port}/{conn.info.dbname}"
        done = cli("doctor", "--json", env={"DATABASE_URL": url})
        assert done.code == 1
        texts = [finding["text"] for finding in done.json if finding["level"] == "fail"]
        assert texts == [f"{role} lacks UPDATE on table jobs: grant it"]
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
    found = {finding.check: finding.level for finding in doctor.check_pooler(18, pooled, settings)}
    assert found == {"pooler": "warn", "session": "warn"}


def test_a_password_file_for_everybody_is_a_warning(dsn: str, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("pw")
    settings = make_settings(dsn, password_file=file)
    file.chmod(0o640)
    assert list(doctor.check_files(settings)) == []
    file.chmod(0o644)
    (found,) = doctor.check_files(settings)
    assert (found.level, "chmod o=" in found.text) == ("warn", True)
