"""The maintenance process as a real fork: what it says, what it frees, how it leaves."""

from __future__ import annotations

import signal

import psycopg
import pytest

from reliable_worker.settings import Settings
from tests.fixtures.configuration import make_settings
from tests.fixtures.waiting import wait_until
from tests.maintenance.forked import SECONDS, forked
from tests.maintenance.rows import BOOT, add, add_running, get


@pytest.mark.quick
def test_it_works_from_its_start_to_its_drain(conn: psycopg.Connection, brisk: Settings) -> None:
    lapsed = add_running(conn, "x" * 32 + ".0", lease_seconds=-1, claimed_seconds_ago=900)
    spent = add(conn, attempts=5)
    dead = add_running(conn, f"{BOOT}.0")
    innocent = add_running(conn, f"{BOOT}.1")
    with forked(brisk) as process:
        process.wait_for("ready")
        process.wait_ready()
        process.bury(BOOT, "crash", error="killed by signal 9 (SIGKILL)", started=[[dead, 1]])
        process.wait_for("buried", boot=BOOT)
        row = get(conn, dead)
        assert (row["state"], row["crashes"], row["attempts"]) == ("ready", 1, 0)
        assert "killed by signal 9 (SIGKILL)" in row["last_error"]
        row = get(conn, innocent)
        assert (row["state"], row["crashes"], row["attempts"]) == ("ready", 0, 0)
        process.say(say="kinds", kinds=["message"])
        assert process.wait_for("suspects")["count"] == 1
        wait_until(lambda: get(conn, lapsed)["state"] == "ready", SECONDS, "expiry")
        wait_until(lambda: get(conn, spent)["state"] == "dead", SECONDS, "sweep")
        census = process.wait_for("census")
        assert census["queues"]["default"].keys() == {
            "ready",
            "running",
            "expired",
            "dead",
            "oldest_ready_age_seconds",
        }
        assert process.board.contact > 0
        process.signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    left = "SELECT count(*) FROM pg_stat_activity WHERE starts_with(application_name, %s)"
    wait_until(
        lambda: conn.execute(left, (f"rw:{process.boot}:",)).fetchone() == (0,),
        SECONDS,
        "its connections are closed",
    )


def test_without_a_schema_it_says_so_and_exits_4(empty_dsn: str) -> None:
    with forked(make_settings(empty_dsn)) as process:
        failed = process.wait_for("failed")
        assert (failed["exit"], process.wait(SECONDS)) == (4, 4)
        assert "migrate up" in failed["line"]
        assert not process.board.ready
