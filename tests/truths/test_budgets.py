"""Truth 8: each budget, by name, cuts the thing that really stalls.

The neighbours that could cut it instead stand at three times it where the rules of fitting allow;
where they forbid that, the stall is one the neighbour cannot see. What cut is told by the error's
SQLSTATE or by the budget's name in it, not by a stopwatch.
"""

import socket
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from reliable_worker.postgres.database import DeadlineExceeded, connect
from tests.faults.cluster import BreakableServer
from tests.faults.evidence import add_jobs
from tests.faults.invariants import assert_sound
from tests.faults.link import Mode, Then
from tests.faults.proxy import Proxy
from tests.fixtures.commands import Fleet
from tests.fixtures.configuration import make_settings
from tests.fixtures.waiting import wait_until
from tests.truths import looking

Connection = psycopg.Connection[Any]
Worker = Callable[..., Fleet]


# -- one connection ---------------------------------------------------------------------------


def test_connect_timeout_seconds_cuts_a_silent_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dsn = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/nothing"
        settings = make_settings(dsn, connect_timeout_seconds=0.5)
        with pytest.raises(psycopg.OperationalError, match="connect_timeout_seconds"):
            connect(settings, lane="work")


def test_statement_timeout_seconds_cuts_a_long_statement(dsn: str) -> None:
    settings = make_settings(dsn, statement_timeout_seconds=0.5, lock_timeout_seconds=0.4)
    with connect(settings, lane="work") as conn, conn.budget(1.5, "query_timeout_seconds"):
        with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
            conn.execute("SELECT pg_sleep(20)")


def test_query_timeout_seconds_cuts_a_stopped_backend(
    own_server: BreakableServer, own_dsn: str
) -> None:
    """statement_timeout is the frozen backend's own clock, so it cannot come first."""
    settings = make_settings(
        own_dsn,
        query_timeout_seconds=0.5,
        statement_timeout_seconds=0.5,
        lock_timeout_seconds=0.4,
    )
    conn = connect(settings, lane="work")
    own_server.freeze(conn.info.backend_pid)
    with conn.budget(0.5, "query_timeout_seconds"):
        with pytest.raises(DeadlineExceeded, match="query_timeout_seconds"):
            conn.execute("SELECT 1")
    assert conn.closed


def test_lock_timeout_seconds_cuts_a_wait_for_a_row(dsn: str, conn: Connection) -> None:
    (job,) = conn.execute(
        "INSERT INTO jobs (idempotency_key, payload) VALUES ('a', '{}') RETURNING id"
    ).fetchall()[0]
    settings = make_settings(dsn, lock_timeout_seconds=0.4, statement_timeout_seconds=1.2)
    with conn.transaction(), connect(settings, lane="work") as other:
        conn.execute("SELECT FROM jobs WHERE id = %s FOR UPDATE", (job,))
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute("SELECT FROM jobs WHERE id = %s FOR UPDATE", (job,))


def test_idle_in_transaction_timeout_seconds_frees_the_locks_of_a_silent_client(
    dsn: str, conn: Connection
) -> None:
    settings = make_settings(dsn, idle_in_transaction_timeout_seconds=0.5)
    silent = connect(settings, lane="work")
    silent.execute("BEGIN")
    pid = silent.info.backend_pid
    gone = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
    wait_until(lambda: looking.scalar(conn, gone, pid) == 0, 10, "the session ended")
    with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
        silent.execute("SELECT 1")


# -- the whole worker -------------------------------------------------------------------------


def test_claim_timeout_seconds_cuts_a_claim_without_an_answer(
    proxied: Worker, truth: Connection, proxy: Proxy
) -> None:
    fleet = proxied(lease_seconds=20, claim_timeout_seconds=0.6, query_timeout_seconds=2)
    fleet.wait_event("child_ready", 20, role="worker")
    trap = proxy.drop_reply("lease_owner = ($6", app="*:control", then=Then.SILENT)
    (job,) = add_jobs(truth, "work", ["{}"])
    trap.wait(20)
    failed = fleet.wait_event("claim_failed", 10)
    assert "claim_timeout_seconds" in failed["error"]
    looking.wait_state(truth, job, "succeeded", 15)
    assert_sound(truth)


def test_job_timeout_seconds_cancels_a_job(worker: Worker, truth: Connection) -> None:
    (job,) = add_jobs(truth, "work", ['{"seconds": 60}'], max_attempts=1)
    fleet = worker(job_timeout_seconds=1, lease_seconds=3)
    row = looking.wait_state(truth, job, "dead", 20)
    assert row.error is not None
    assert "job_timeout_seconds" in row.error or "timed out" in row.error
    fleet.wait_event("job_failed", 5, job_id=job, reason="timeout")
    assert looking.ends(truth, job) == 1
    assert_sound(truth)


def test_a_job_that_returns_after_its_timeout_has_succeeded(
    worker: Worker, truth: Connection
) -> None:
    (job,) = add_jobs(truth, "late", ['{"seconds": 2}'])
    worker(lease_seconds=3, stuck_grace_seconds=10)
    assert looking.wait_state(truth, job, "succeeded", 20).attempts == 1
    assert_sound(truth)


def test_finish_timeout_seconds_cuts_a_finishing_transaction(
    worker: Worker, truth: Connection
) -> None:
    """Many short statements: each is under every other limit."""
    (job,) = add_jobs(truth, "dawdle", ["{}"], max_attempts=1)
    worker(lease_seconds=6, finish_timeout_seconds=1, max_refunds=0, job_timeout_seconds=60)
    row = looking.wait_state(truth, job, "dead", 20)
    assert row.error is not None
    assert "finish_timeout_seconds" in row.error
    assert looking.effects(truth, job) == 0
    assert_sound(truth)


def test_the_local_deadline_cancels_before_the_lease_ends(
    proxied: Worker, truth: Connection, proxy: Proxy
) -> None:
    (job,) = add_jobs(truth, "work", ['{"seconds": 60}'])
    fleet = proxied(lease_seconds=3, margin_seconds=0.4)
    looking.wait_start(truth, job)
    proxy.set_mode(Mode.STALL, app="rw:*")
    wait_until(lambda: looking.ends(truth, job) == 1, 10, "the handler cancelled")
    early = looking.scalar(
        truth,
        "SELECT j.lease_until > h.at FROM jobs AS j JOIN hist AS h ON h.job_id = j.id"
        " WHERE h.event = 'end' AND j.id = %s",
        job,
    )
    assert early
    fleet.wait_event("lease_lost", 5, job_id=job, reason="deadline")
    # what was cancelled for want of contact is released with refund once there is contact again,
    # unless the reaper was quicker
    proxy.heal()
    wait_until(lambda: looking.starts(truth, job) == 2, 20, "the job run again")
    assert looking.row(truth, job).crashes == 0
    assert_sound(truth, quiet=False)


def test_drain_grace_seconds_lets_a_job_end_and_no_longer(
    worker: Worker, truth: Connection
) -> None:
    (short,) = add_jobs(truth, "work", ['{"seconds": 1}'], prefix="short")
    (long,) = add_jobs(truth, "work", ['{"seconds": 60}'], prefix="long")
    fleet = worker(lease_seconds=20, drain_grace_seconds=3)
    for job in (short, long):
        looking.wait_start(truth, job)
    fleet.terminate()
    assert fleet.wait(12) == 0
    assert looking.row(truth, short).state == "succeeded"
    assert looking.row(truth, long)[:2] == ("ready", 0)
    assert fleet.find("job_released", job_id=long, reason="drain")
    assert_sound(truth)


def test_release_timeout_seconds_ends_a_drain_without_a_database(
    proxied: Worker, truth: Connection, proxy: Proxy
) -> None:
    (job,) = add_jobs(truth, "work", ['{"seconds": 60}'])
    fleet = proxied(lease_seconds=20, release_timeout_seconds=1)
    looking.wait_start(truth, job)
    proxy.set_mode(Mode.STALL, app="rw:*")
    fleet.terminate()
    assert fleet.wait(12) == 0  # an outage does not make a stop look failed
    # it left by itself, so the stop budget did not cut it; what could not be released expires
    (left,) = fleet.find("child_exited", role="worker")
    assert left["reason"] == "exited with status 0"
    assert len(fleet.find("child_started", role="maintenance")) == 1
    # maintenance, with the obituary still to deliver, has the rest of the stop budget
    assert fleet.find("shutdown_complete")[0]["duration_seconds"] < 10
    assert looking.row(truth, job).state == "running"


def test_stop_seconds_ends_a_drain_that_a_handler_ignores(
    worker: Worker, truth: Connection
) -> None:
    (job,) = add_jobs(truth, "stuck", ["{}"])
    fleet = worker(
        lease_seconds=20, stop_seconds=6, release_timeout_seconds=1, stuck_grace_seconds=60
    )
    pid = looking.wait_start(truth, job)
    fleet.terminate()
    assert fleet.wait(8) == 1
    assert fleet.find("shutdown_complete")[0]["duration_seconds"] < 6
    # killed by the drain: neither a crash nor a timeout
    row = looking.row(truth, job)
    assert (row.state, row.attempts, row.crashes) == ("ready", 0, 0)
    assert_sound(truth, killed=[pid], quiet=False)


def test_stuck_grace_seconds_ends_the_process_of_a_thread_that_ignores_its_cancellation(
    worker: Worker, truth: Connection
) -> None:
    (stuck,) = add_jobs(truth, "stuck", ["{}"], max_attempts=1)
    fleet = worker(lease_seconds=20, stuck_grace_seconds=0.5, workers=1)
    pid = looking.wait_start(truth, stuck)
    fleet.wait_event("thread_stuck", 10, job_id=stuck)
    fleet.wait_event("child_killed", 20, pid=pid)
    row = looking.wait_state(truth, stuck, "dead", 10)  # a timeout: its one attempt stays spent
    assert (row.attempts, row.crashes) == (1, 0)
    (next_job,) = add_jobs(truth, "work", ["{}"])
    looking.wait_state(truth, next_job, "succeeded", 20)
    assert_sound(truth, killed=[pid])


def test_stall_seconds_ends_a_process_whose_interpreter_is_held(
    worker: Worker, truth: Connection
) -> None:
    (job,) = add_jobs(truth, "gil", ['{"seconds": 60}'])
    fleet = worker(lease_seconds=5, stall_seconds=1, workers=1)
    pid = looking.wait_start(truth, job)
    fleet.wait_event("child_killed", 15, pid=pid)
    wait_until(lambda: looking.row(truth, job).fence >= 2, 10, "the job taken back")
    taken = looking.scalar(
        truth,
        "SELECT max(new_crashes) FROM audit WHERE id = %s AND old_state = 'running'",
        job,
    )
    assert taken == 1
    assert_sound(truth, killed=[pid, *fleet.children()], quiet=False)
