"""The maintenance process as a real fork: what it says, what it frees, how it leaves."""

from __future__ import annotations

import json
import signal

import psycopg
import pytest

from reliable_worker.jobs import failpoints
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


def test_an_obituary_sent_just_before_the_end_is_done(
    conn: psycopg.Connection, brisk: Settings
) -> None:
    with forked(brisk) as process:
        process.wait_ready()
        jobs = []
        for number in range(20):
            boot = f"{number:032x}"
            jobs.append(add_running(conn, f"{boot}.0"))
            process.bury(boot, "drain", started=[[jobs[-1], 1]])
        process.signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    assert {get(conn, job)["state"] for job in jobs} == {"ready"}
    assert len(process.heard("buried")) == 20


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_row_that_stays_locked_does_not_keep_it(
    conn: psycopg.Connection, dsn: str, brisk: Settings, number: signal.Signals
) -> None:
    """The row expires in the end; a successor, if there is one, is sent the obituary again."""
    job = add_running(conn)
    with forked(brisk) as process, psycopg.connect(dsn) as holder:
        process.wait_ready()
        holder.execute("SELECT 1 FROM jobs WHERE id = %s FOR UPDATE", (job,))
        process.bury(BOOT, "crash", error="x", started=[[job, 1]])
        process.signal(number)
        assert process.wait(SECONDS) == 0
        assert process.heard("buried") == []
    assert get(conn, job)["state"] == "running"


def test_without_its_parent_it_is_gone_in_two_seconds(
    conn: psycopg.Connection, brisk: Settings
) -> None:
    with forked(brisk) as process:
        process.wait_ready()
        process.hang_up()
        process.wait(2.0)


def test_a_garbled_message_ends_nothing(conn: psycopg.Connection, brisk: Settings) -> None:
    job = add_running(conn)
    with forked(brisk) as process:
        process.wait_ready()
        process.say(say="obituary", boot=BOOT, started="nonsense")
        process.say(say="kinds", kinds=7)
        process.say(say="a word of a later release")
        process.bury(BOOT, "exit")
        process.wait_for("buried", boot=BOOT)
    assert get(conn, job)["state"] == "ready"


def test_a_plain_insert_wakes_who_listens(
    conn: psycopg.Connection, dsn: str, brisk: Settings
) -> None:
    with forked(brisk, drain=True) as process:
        process.wait_ready()
        process.say(say="kinds", kinds=["message"])
        process.say(say="eligible", ask=1)
        assert process.wait_for("eligible", ask=1)["count"] == 0
        with psycopg.connect(dsn, autocommit=True) as listener:
            listener.execute("LISTEN reliable_worker")
            add(conn, queue="mail", priority=3)
            (notify,) = listener.notifies(timeout=SECONDS, stop_after=1)
        assert json.loads(notify.payload) == [["mail", "message", 3]]
        process.say(say="eligible", ask=2)
        assert process.wait_for("eligible", ask=2)["count"] == 1


def test_two_maintenance_processes_share_a_database(
    conn: psycopg.Connection, brisk: Settings
) -> None:
    jobs = [add_running(conn, lease_seconds=-1) for _ in range(50)]
    with forked(brisk) as one, forked(brisk) as other:
        one.wait_ready()
        other.wait_ready()
        wait_until(
            lambda: {get(conn, job)["state"] for job in jobs} == {"ready"}, SECONDS, "expiry"
        )
    assert {get(conn, job)["fence"] for job in jobs} == {2}


def test_a_successor_finishes_an_obituary_its_predecessor_died_on(
    conn: psycopg.Connection, brisk: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent sends it again; what was freed before is not judged twice."""
    job = add_running(conn)
    facts = {"error": "killed by signal 9 (SIGKILL)", "started": [[job, 1]]}
    with monkeypatch.context() as armed:
        armed.setattr(failpoints, "_armed", failpoints._parse("in_obituary:kill"))
        with forked(brisk) as process:
            process.wait_ready()
            process.bury(BOOT, "crash", **facts)
            assert process.wait(SECONDS) == -signal.SIGKILL
    assert get(conn, job)["state"] == "running"
    with forked(brisk) as process:
        process.bury(BOOT, "crash", **facts)
        process.wait_for("buried", boot=BOOT)
    row = get(conn, job)
    assert (row["state"], row["crashes"], row["fence"]) == ("ready", 1, 2)
