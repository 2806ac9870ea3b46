"""The verbs enqueue, jobs, queues and config on a real database."""

from __future__ import annotations

import json
import os
import pty
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.cli.conftest import Cli

Connection = psycopg.Connection[Any]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An application with one kind, importable from the folder one stands in."""
    (tmp_path / "shop_app.py").write_text(
        "from dataclasses import dataclass\n"
        "import reliable_worker as rw\n"
        "app = rw.App()\n"
        "@dataclass\n"
        "class Invoice:\n"
        "    number: int\n"
        "@app.handler('invoice.send', max_attempts=9)\n"
        "def send(job: rw.Job[Invoice]) -> None: ...\n"
    )
    (tmp_path / "broken_app.py").write_text("raise RuntimeError('boom')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("shop_app", "broken_app"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "shop_app:app"


def test_enqueue_stores_what_it_was_told(db: Cli, conn: Connection) -> None:
    done = db(
        *("enqueue", "k", "--key", "key-1", "--payload", '{"a": 1.50}', "--queue", "q"),
        *("--priority", "2", "--max-attempts", "3", "--at", "2030-01-31T06:00+01:00", "--json"),
    )
    assert done.code == 0
    assert done.json == {"id": 1, "state": "ready", "status": "new", "key": "key-1"}
    row = conn.execute(
        "SELECT kind, payload::text, queue, priority, max_attempts,"
        " available_at = '2030-01-31 05:00Z' FROM jobs"
    ).fetchone()
    assert row == ("k", '{"a": 1.50}', "q", 2, 3, True)
    again = db("enqueue", "k", "--key", "key-1", "--payload", '{"a":1.5}')
    assert again.out == "job 1 ready (existing), key key-1\n"


def test_enqueue_reads_stdin_waits_and_makes_keys(db: Cli, conn: Connection) -> None:
    assert db("enqueue", "k", "--payload", "-", "--in", "2h", input=b'["\xc3\xbc"]').code == 0
    assert db("enqueue", "k").code == 0
    rows = conn.execute(
        "SELECT payload, length(idempotency_key), available_at > now() + interval '119 min'"
        " FROM jobs ORDER BY id"
    ).fetchall()
    assert rows == [(["ü"], 36, True), ({}, 36, False)]


@pytest.mark.parametrize(
    ("words", "input_", "reason"),
    [
        (["k", "--payload", "{"], b"", "payload is not JSON"),
        (["k", "--payload", ""], b"", "payload is not JSON"),
        (["k", "--payload", "-"], b"", "payload is not JSON"),
        (["k", "--payload", "-"], b"\xff", "payload is not UTF-8 at byte 0"),
        (["k", "--payload", "NaN"], b"", "payload holds NaN"),
        (["k", "--payload", r'"\u0000"'], b"", "payload holds a NUL"),
        (["k", "--payload", r'"\ud800"'], b"", "payload holds a lone surrogate"),
        (["k", "--payload", '"\udcff"'], b"", "payload holds a lone surrogate"),
        (["k", "--payload", "1e400"], b"", "too large for a float"),
        (["k", "--payload", "9" * 5000], b"", "digits"),
        (["k", "--payload", "-"], b'"' + b"x" * 2**21 + b'"', "payload has more than 1048576"),
        (["k", "--payload", "-"], b"[" * 3000 + b"]" * 3000, "nested deeper than 500"),
        (["", "--payload", "{}"], b"", "kind must have 1 to 128 bytes"),
        (["k", "--key", ""], b"", "key must have 1 to 512 bytes"),
        (["k", "--key", "\udcff"], b"", "key holds a lone surrogate"),
        (["k", "--queue", "q" * 129], b"", "queue must have"),
        (["k", "--priority", "-1"], b"", "priority must be 0 to 9"),
        (["k", "--priority", "10"], b"", "priority must be 0 to 9"),
        (["k", "--max-attempts", "0"], b"", "max_attempts must be 1 to 2147483647"),
        (["k", "--max-attempts", "2147483648"], b"", "max_attempts must be"),
        (["k", "--in", "999999999d"], b"", "run_at must be 0 to 36525 days"),
        (["k", "--at", "9999-12-31T23:59-01:00"], b"", "run_at must be in the years 1 to 9999"),
        (["k", "--max-payload-bytes", "5", "--payload", '"12345"'], b"", "more than 5"),
    ],
    ids=range(23),
)
def test_enqueue_refuses_bad_input_in_one_line(
    db: Cli, conn: Connection, words: list[str], input_: bytes, reason: str
) -> None:
    done = db("enqueue", *words, input=input_)
    assert done.code == 2
    assert reason in done.line
    assert conn.execute("SELECT count(*) FROM jobs").fetchone() == (0,)


def test_a_key_with_another_job_is_exit_1(db: Cli, conn: Connection) -> None:
    assert db("enqueue", "k", "--key", "a", "--payload", "1").code == 0
    for words in (("other", "--payload", "1"), ("k", "--payload", '"canary"')):
        done = db("enqueue", *words, "--key", "a")
        assert done.code == 1
        assert "the idempotency key belongs to job 1" in done.line
        assert "canary" not in done.err
    assert conn.execute("SELECT count(*) FROM jobs").fetchone() == (1,)


def test_an_app_checks_kind_and_payload(db: Cli, conn: Connection, shop: str) -> None:
    good = ("invoice.send", "--payload", '{"number": 1}')
    assert db("enqueue", *good, "--app", shop).code == 0
    assert db("enqueue", "any.language", "--payload", "3").code == 0
    assert conn.execute("SELECT max_attempts FROM jobs ORDER BY id").fetchall() == [(9,), (5,)]
    for words, app, reason in (
        (("any.language",), shop, "kind 'any.language' has no handler"),
        (("any.language", "--max-attempts", "3"), shop, "has no handler"),
        (("invoice.send",), shop, "payload is not what kind 'invoice.send' takes: number is"),
        (good, "broken_app:app", "raised RuntimeError: boom (broken_app.py, line 1)"),
        (good, "no_such_app:app", "there is no module 'no_such_app'"),
        (good, "shop_app:ap", "has no 'ap'"),
        (good, "shop_app", "set it to module:attribute"),
    ):
        done = db("enqueue", *words, "--app", app)
        assert (done.code, reason in done.line) == (2, True), done.err
    assert conn.execute("SELECT count(*) FROM jobs").fetchone() == (2,)


def fill(conn: Connection) -> None:
    """Jobs of ids 1 to 6: two ready, a suspect, two running (one expired), a dead one."""
    conn.execute(
        "INSERT INTO jobs (idempotency_key, payload, queue, kind, state, attempts, crashes,"
        " available_at, lease_owner, lease_until, claimed_at, ended_at, last_error, fence) VALUES"
        " ('1', '{}', 'a', 'k', 'ready', 0, 0, now() - interval '60 s', NULL, NULL, NULL, NULL,"
        "  NULL, 0),"
        " ('2', '{}', 'a', 'k', 'ready', 0, 0, '9999-12-31 23:59:59Z', NULL, NULL, NULL, NULL,"
        "  NULL, 0),"
        " ('3', '{}', 'b', 'k', 'ready', 1, 1, now(), NULL, NULL, NULL, NULL, 'killed', 1),"
        " ('4', '{}', 'b', 'k', 'running', 1, 0, now(), 'o.1', now() + interval '30 s', now(),"
        "  NULL, NULL, 1),"
        " ('5', '{}', 'b', 'k', 'running', 1, 0, now(), 'o.2', now() - interval '1 s', now(),"
        "  NULL, NULL, 1),"
        " ('6', '[\"payload\"]', 'a', 'other', 'dead', 5, 2, now(), NULL, NULL, now(), now(),"
        "  E'line one\\nline two \\x1b[31m', 7)"
    )


def test_jobs_list_filters_and_pages(db: Cli, conn: Connection) -> None:
    assert db("jobs", "list").out.splitlines()[0].split()[:3] == ["ID", "STATE", "KIND"]
    fill(conn)

    def ids(*words: str) -> list[int]:
        return [job["id"] for job in db("jobs", "list", "--json", *words).json]

    assert ids() == [6, 5, 4, 3, 2, 1]
    assert ids("--state", "running") == [5, 4]
    assert ids("--queue", "a", "--kind", "k") == [2, 1]
    assert ids("--limit", "2") == [6, 5]
    assert ids("--limit", "2", "--before", "5") == [4, 3]
    table = db("jobs", "list").out
    assert len(table.splitlines()) == 7
    assert "\x1b" not in table
    assert "9999-12-31 23:59:59Z" in table
    assert "payload" not in table


def test_times_are_utc_whatever_the_session_says(db: Cli, conn: Connection) -> None:
    fill(conn)
    done = db("jobs", "show", "2", "--json", env={"PGTZ": "Pacific/Kiritimati"})
    assert done.json["available_at"] == "9999-12-31T23:59:59Z"


def test_jobs_show_tells_everything(db: Cli, conn: Connection) -> None:
    fill(conn)
    shown = db("jobs", "show", "6", "--json").json
    assert shown["payload"] == ["payload"]
    assert (shown["key"], shown["fence"], shown["state"], shown["crashes"]) == ("6", 7, "dead", 2)
    columns = conn.execute(
        "SELECT column_name FROM information_schema.columns WHERE table_name = 'jobs'"
    ).fetchall()
    named = {name for (name,) in columns} - {"idempotency_key", "lease_until"}
    assert named | {"key", "lease_seconds_left", "timeline"} == set(shown)
    assert db("jobs", "show", "4", "--json").json["lease_seconds_left"] > 10
    text = db("jobs", "show", "6").out
    assert r"line one\nline two \x1b[31m" in text
    assert "\x1b" not in text
    missing = db("jobs", "show", "7")
    assert (missing.code, missing.line) == (1, "there is no job 7")


def test_jobs_show_survives_a_payload_nobody_can_read(db: Cli, conn: Connection) -> None:
    conn.execute(
        "INSERT INTO jobs (idempotency_key, payload)"
        " VALUES ('deep', (repeat('[', 3000) || repeat(']', 3000))::jsonb),"
        " ('long', repeat('9', 5000)::jsonb)"
    )
    for job_id in ("1", "2"):
        assert db("jobs", "show", job_id, "--json").code == 0
        assert db("jobs", "show", job_id).code == 0


@pytest.mark.quick
def test_jobs_retry_starts_a_dead_job_over_and_keeps_its_fence(db: Cli, conn: Connection) -> None:
    fill(conn)
    done = db("jobs", "retry", "6", "--json")
    assert done.json == [{"id": 6, "state": "ready"}]
    row = conn.execute(
        "SELECT state, attempts, crashes, refunds, snoozes, fence, ended_at,"
        " available_at <= clock_timestamp() FROM jobs WHERE id = 6"
    ).fetchone()
    assert row == ("ready", 0, 0, 0, 0, 7, None, True)
    for job_id, state in ((1, "ready"), (3, "ready"), (4, "running"), (5, "running")):
        refused = db("jobs", "retry", str(job_id))
        assert refused.code == 1
        assert refused.line == f"job {job_id} is {state}: only a dead job can be retried"
    assert db("jobs", "retry", "77").line == "there is no job 77"


def test_jobs_retry_of_a_locked_row_is_exit_75(db: Cli, conn: Connection) -> None:
    fill(conn)
    with conn.transaction():
        conn.execute("SELECT 1 FROM jobs WHERE id = 6 FOR UPDATE")
        done = db("jobs", "retry", "6", env={"RELIABLE_WORKER_LOCK_TIMEOUT_SECONDS": "0.2"})
    assert (done.code, done.line) == (75, "another transaction holds the row: try again")


def test_queues_list_counts_by_state(db: Cli, conn: Connection) -> None:
    assert db("queues", "list", "--json").json == []
    fill(conn)
    a, b = db("queues", "list", "--json").json
    assert 60 <= a.pop("oldest_ready_age_seconds") < 120
    assert b.pop("oldest_ready_age_seconds") >= 0
    zero: dict[str, object] = {
        "ready": 0,
        "scheduled": 0,
        "suspects": 0,
        "running": 0,
        "expired": 0,
        "dead": 0,
    }
    zero |= {"paused": False, "paused_until": None}
    assert a == zero | {"queue": "a", "ready": 1, "scheduled": 1, "dead": 1}
    assert b == zero | {"queue": "b", "ready": 1, "suspects": 1, "running": 1, "expired": 1}
    assert db("queues", "list").out.splitlines()[1].split()[:3] == ["a", "1", "1"]


def test_config_shows_sources_and_no_secret(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "worker.toml"
    file.write_text('queues = ["a", "b"]\ndatabase_url = "postgresql://u:s3cret@h/d"\n')
    words = ("config", "--config", str(file), "--workers", "3")
    shown = cli(*words, "--json", env={"PROCESSES": "2"}).json
    assert shown["queues"] == {"value": ["a", "b"], "source": "file"}
    assert shown["workers"] == {"value": 3, "source": "flag"}
    assert shown["processes"] == {"value": 2, "source": "environment"}
    assert shown["lease_seconds"] == {"value": 30.0, "source": "default"}
    assert shown["database_url"] == {"value": "<redacted>", "source": "file"}
    text = cli(*words).out
    assert "s3cret" not in text
    assert json.dumps(shown).count("s3cret") == 0


@pytest.mark.parametrize(("env", "colour"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_are_for_terminals_that_want_them(env: dict[str, str], colour: bool) -> None:
    pid, terminal = pty.fork()
    if pid == 0:  # the child: becomes the command
        for name in ("NO_COLOR", "DATABASE_URL"):
            os.environ.pop(name, None)
        os.execve(
            sys.executable,
            [sys.executable, "-m", "reliable_worker", "config"],
            {**os.environ, "TERM": "xterm", **env},
        )
    shown = b""
    try:
        while part := os.read(terminal, 65536):
            shown += part
    except OSError:
        pass  # Linux ends a terminal whose other side is gone with an error
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (b"\x1b[" in shown) == colour
