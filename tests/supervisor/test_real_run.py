"""Shows `reliable-worker run` whole, on a real database: what it loads, ends, reloads and survives.

The supervisor's own behaviour is shown with scripted children beside this file; here the children
are the real ones.
"""

from __future__ import annotations

import functools
import json
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.fixtures.commands import Fleet
from tests.fixtures.scraping import scrape
from tests.fixtures.waiting import wait_until

Start = Callable[..., Fleet]
Connection = psycopg.Connection[Any]
SECONDS = 20.0

APPLICATION = """
import os
import time
import reliable_worker as rw

app = rw.App()


@app.handler("good")
def good(job: rw.Job[dict]) -> None:
    time.sleep(job.payload.get("seconds", 0))


@app.handler("bad")
def bad(job: rw.Job[dict]) -> None:
    os.kill(os.getpid(), 9)


@app.handler("stuck", timeout_seconds=0.3)
def stuck(job: rw.Job[dict]) -> None:
    while True:
        time.sleep(0.1)


@app.handler("hang")
def hang(job: rw.Job[dict]) -> None:
    import ctypes
    ctypes.PyDLL(None).sleep(60)  # with the interpreter's lock
"""


@pytest.fixture
def shop(fleet: Start, tmp_path: Path) -> Start:
    """Starts fleets in a folder of their own, which holds the module `shop`."""
    (tmp_path / "shop.py").write_text(APPLICATION)

    def start(*args: str, **settings: object) -> Fleet:
        settings = {"poll_seconds": 0.1, "workers": 2, "processes": 2, **settings}
        return fleet("--app", "shop:app", *args, cwd=tmp_path, **settings)

    return start


def _add(conn: Connection, kind: str, count: int = 1, payload: object = None) -> None:
    for _ in range(count):
        conn.execute(
            "INSERT INTO jobs (idempotency_key, kind, payload)"
            " VALUES (gen_random_uuid()::text, %s, %s)",
            (kind, json.dumps(payload or {})),
        )


def _states(conn: Connection) -> dict[str, int]:
    return dict(conn.execute("SELECT state, count(*) FROM jobs GROUP BY state").fetchall())


@pytest.mark.quick
def test_drain_runs_everything_suspects_included_and_ends(shop: Start, conn: Connection) -> None:
    _add(conn, "good", 30)
    _add(conn, "bad")
    fleet = shop("--drain")
    assert fleet.wait(60) == 0
    assert _states(conn) == {"succeeded": 30, "dead": 1}
    assert fleet.find("shutdown_started", reason="drained")
    assert fleet.strays == []


def test_drain_ends_at_once_on_an_empty_queue(shop: Start) -> None:
    fleet = shop("--drain")
    assert fleet.wait(SECONDS) == 0


def test_once_claims_once_and_ends_whatever_the_jobs_did(shop: Start, conn: Connection) -> None:
    _add(conn, "good", 5)
    fleet = shop("--once", workers=2)
    assert fleet.wait(SECONDS) == 0
    assert _states(conn) == {"succeeded": 2, "ready": 3}
    conn.execute("DELETE FROM jobs")
    _add(conn, "bad")
    fleet = shop("--once", workers=2)
    assert fleet.wait(SECONDS) == 0
    assert _states(conn) == {"ready": 1}
    assert conn.execute("SELECT attempts, crashes FROM jobs").fetchall() == [(0, 1)]


def test_the_parent_of_real_children_maps_no_libpq_and_has_one_thread(
    shop: Start, conn: Connection
) -> None:
    fleet = shop()
    fleet.wait_event("supervisor_ready", SECONDS)
    _add(conn, "good", 4)
    wait_until(lambda: _states(conn) == {"succeeded": 4}, SECONDS, "jobs done")
    scrape(fleet.metrics_address())
    fleet.send(signal.SIGHUP)
    fleet.wait_event("reload_complete", SECONDS)
    maps = Path(f"/proc/{fleet.pid}/maps").read_text()
    assert "libpq" not in maps
    assert "psycopg" not in maps
    assert len(list(Path(f"/proc/{fleet.pid}/task").iterdir())) == 1
    (child, *_) = fleet.children()
    assert "libpq" in Path(f"/proc/{child}/maps").read_text()


def test_a_reload_imports_the_application_afresh_and_refuses_a_broken_one(
    shop: Start, conn: Connection, tmp_path: Path
) -> None:
    fleet = shop()
    fleet.wait_event("supervisor_ready", SECONDS)
    before = fleet.children()
    (tmp_path / "shop.py").write_text("import nowhere_to_be_found\n")
    fleet.send(signal.SIGHUP)
    failed = fleet.wait_event("reload_failed", SECONDS)
    assert "nowhere_to_be_found" in failed["error"]
    assert fleet.children() == before
    (tmp_path / "shop.py").write_text(APPLICATION.replace('"good"', '"better"'))
    _add(conn, "better", 2)
    fleet.send(signal.SIGHUP)
    fleet.wait_event("reload_complete", SECONDS)
    wait_until(lambda: _states(conn) == {"succeeded": 2}, SECONDS, "the new kind's jobs")
    fleet.terminate()
    assert fleet.wait(SECONDS) == 0


def test_jobs_go_on_through_a_storm_of_hangups(shop: Start, conn: Connection) -> None:
    _add(conn, "good", 40, {"seconds": 0.1})
    fleet = shop()
    fleet.wait_event("supervisor_ready", SECONDS)
    for _ in range(20):
        fleet.send(signal.SIGHUP)
    wait_until(lambda: _states(conn) == {"succeeded": 40}, 40, "all jobs")
    attempts = conn.execute("SELECT DISTINCT attempts, crashes, refunds FROM jobs").fetchall()
    assert attempts == [(1, 0, 0)]  # a reload cancels nothing


def test_a_sigterm_while_children_boot_and_claim_leaves_nothing(
    shop: Start, conn: Connection
) -> None:
    """As with scripted children, and no lease or connection is left either."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    _add(conn, "good", 50, {"seconds": 0.3})
    for _ in range(3):
        fleets = [(time.monotonic() + rng.uniform(0.3, 2.0), shop()) for _ in range(4)]
        for moment, fleet in sorted(fleets, key=lambda pair: pair[0]):
            wait_until(functools.partial(_past, moment), SECONDS, "the moment")
            fleet.terminate()
        for _, fleet in fleets:
            assert fleet.wait(SECONDS) in (0, -signal.SIGTERM)
            assert fleet.processes() == []
        assert "running" not in _states(conn)
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'rw:%'"
    wait_until(lambda: conn.execute(sessions).fetchone() == (0,), SECONDS, "no connection")
    wasted = "SELECT count(*) FROM jobs WHERE state = 'ready' AND attempts > 0"
    assert conn.execute(wasted).fetchone() == (0,)


def _past(moment: float) -> bool:
    return time.monotonic() >= moment


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("raise RuntimeError('no configuration')", "no configuration"),
        ("app = 3", "it is a int, not a reliable_worker.App"),
    ],
)
def test_an_application_that_does_not_load_ends_the_run_with_one_line(
    shop: Start, tmp_path: Path, module: str, line: str
) -> None:
    (tmp_path / "shop.py").write_text(module + "\n")
    fleet = shop()
    assert fleet.wait(SECONDS) == 1
    assert line in fleet.stderr()
    assert fleet.stderr().count("\n") == 1


def test_a_stuck_thread_costs_one_attempt_and_one_process(shop: Start, conn: Connection) -> None:
    _add(conn, "stuck")
    conn.execute("UPDATE jobs SET max_attempts = 1")
    fleet = shop(stuck_grace_seconds=0.5)
    wait_until(lambda: _states(conn) == {"dead": 1}, SECONDS, "the job dead of its timeout")
    victim = fleet.wait_event("child_killed", SECONDS, cause="timeout")
    assert fleet.wait_event("child_exited", SECONDS, pid=victim["pid"])["cause"] == "timeout"
    assert conn.execute("SELECT attempts, crashes FROM jobs").fetchall() == [(1, 0)]
    _add(conn, "good")
    wait_until(lambda: _states(conn) == {"dead": 1, "succeeded": 1}, SECONDS, "work goes on")


def test_a_handler_that_keeps_the_interpreters_lock_is_ended_and_blamed(
    shop: Start, conn: Connection
) -> None:
    _add(conn, "hang")
    fleet = shop(lease_seconds=6, stall_seconds=2, max_crashes=1)
    wait_until(lambda: _states(conn) == {"dead": 1}, SECONDS, "the job dead of its stall")
    fleet.wait_event("child_exited", SECONDS, cause="stall")
    (error,) = conn.execute("SELECT last_error FROM jobs").fetchone() or ("",)
    assert "main loop stood still" in error
    wait_until(lambda: "shop.py" in fleet.stderr(), SECONDS, "the stacks written before the end")
