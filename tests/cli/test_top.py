"""top: one look in JSON and as text, its rates, and a live table on a terminal and off it."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from typing import Any

import psycopg
import pytest

from reliable_worker.cli import top
from reliable_worker.postgres import sample
from reliable_worker.postgres.database import connect
from tests.cli.conftest import Cli
from tests.fixtures.commands import clean_environment
from tests.fixtures.configuration import make_settings
from tests.fixtures.waiting import wait_until
from tests.maintenance.rows import BOOT, add, add_running

Connection = psycopg.Connection[Any]


def fill(conn: Connection) -> int:
    conn.execute(
        "INSERT INTO worker_processes (boot, host, pid, role, slots, kinds, queues)"
        " VALUES (%s, 'web-1', 4242, 'worker', 4, '{message}', '{}')",
        [BOOT],
    )
    add(conn, queue="mail")
    add(conn, queue="mail", available_at="9000-01-01Z")
    return add_running(conn, claimed_seconds_ago=60)


@pytest.mark.quick
def test_one_look(db: Cli, conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "_ONCE_SECONDS", 0.01)
    job = fill(conn)
    found = db("top", "--json").json
    assert (found["processes"], found["slots"], found["busy"]) == (1, 4, 1)
    assert [(q["queue"], q["ready"], q["scheduled"]) for q in found["queues"]] == [
        ("default", 0, 0),
        ("mail", 1, 1),
    ]
    (running,) = found["running"]
    assert (running["id"], running["where"]) == (job, "web-1/4242/0")
    assert running["held_seconds"] >= 60
    text = db("top", "--once").out
    assert text.startswith("1 worker processes, 1 of 4 slots busy; 0.0 enqueued and 0.0 ended")
    assert "web-1/4242/0" in text
    assert "\x1b" not in text


def test_rates_are_of_the_time_between_two_looks(dsn: str, conn: Connection) -> None:
    with connect(make_settings(dsn), lane="cli") as ours:
        for _ in range(5):
            add(conn)
        first = sample.take(ours)
        assert first.enqueued_rate is first.ended_rate is None
        for _ in range(4):
            add(conn)
        conn.execute("DELETE FROM jobs WHERE id <= 3")
        second = sample.take(ours, first)
    passed = second.at - first.at
    assert second.enqueued_rate == pytest.approx(4 / passed)
    assert second.ended_rate == pytest.approx(3 / passed)


@pytest.mark.parametrize("rich", [True, False])
def test_a_terminal_sees_a_table_that_moves_until_ctrl_c(
    dsn: str, conn: Connection, rich: bool
) -> None:
    fill(conn)
    env = clean_environment(DATABASE_URL=dsn, TERM="xterm", COLUMNS="160", LINES="40")
    code = "import sys\nfrom reliable_worker.cli import top\n"
    code += "" if rich else "top._rich = lambda: None\n"
    code += "from reliable_worker.cli.main import main\nsys.exit(main(['top', '--every', '1s']))"
    ours, theirs = pty.openpty()
    seen: list[bytes] = []
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)

    def read() -> None:
        try:
            while part := os.read(ours, 65536):
                seen.append(part)
        except OSError:
            pass  # Linux ends a terminal whose other side is gone with an error

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        wait_until(lambda: b"".join(seen).count(b"web-1/4242/0") >= 2, 30, "two tables")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait(20)
        reader.join(10)
        os.close(ours)
    assert (b"\x1b[?1049h" in b"".join(seen)) == rich  # rich draws on the other screen


def test_without_a_terminal_it_prints_one_look_after_the_other(dsn: str, conn: Connection) -> None:
    fill(conn)
    process = subprocess.Popen(
        [sys.executable, "-m", "reliable_worker", "top", "--every", "1s"],
        env=clean_environment(DATABASE_URL=dsn),
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        for _ in range(2):
            while b"slots busy" not in process.stdout.readline():
                pass
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert b"\x1b" not in process.stdout.read()
    finally:
        process.kill()
        process.wait(20)
        process.stdout.close()
