"""A database that crashes, freezes, resets, dawdles or half-vanishes costs no attempt for good:
every job succeeds once, on its first attempt or one given back."""

import json
import os
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.faults.cluster import BreakableServer
from tests.faults.evidence import add_jobs, install
from tests.faults.invariants import assert_sound
from tests.faults.link import Mode
from tests.faults.proxy import Proxy
from tests.fixtures.commands import Fleet
from tests.fixtures.waiting import wait_until
from tests.truths import looking

Connection = psycopg.Connection[Any]
Worker = Callable[..., Fleet]

HOWS = ("effect", "transaction", "finish")
# The handlers' own connection must not hide what the product does: jobs of kind `plain` have none.
JOBS = [json.dumps({"how": HOWS[n % 3], "seconds": 0.1}) for n in range(60)]
# The lease outlives every fault here: what helps is not its expiry. A release after a fault backs
# off by so little that a test sees the job run again.
PATIENT: dict[str, object] = {
    "lease_seconds": 15,
    "retry_base_seconds": 0.2,
    "max_refunds": 50,
    "workers": 4,
    "query_timeout_seconds": 1.5,
    "connect_timeout_seconds": 1.5,
}


def judge(conn: Connection, fleet: Fleet) -> None:
    """All succeeded, no attempt and no crash charged, nobody restarted."""
    looking.wait_all(conn, "succeeded", 60)
    assert looking.scalar(conn, "SELECT max(attempts) FROM jobs") == 1
    assert looking.scalar(conn, "SELECT max(new_crashes) FROM audit") == 0
    assert not fleet.find("job_failed")
    assert not fleet.find("child_restarted")
    assert_sound(conn)


@pytest.mark.parametrize("fault", ["crash", "stop", "kill_backend"])
def test_a_restarting_server_charges_nobody(
    worker: Worker, own_server: BreakableServer, own_dsn: str, fault: str
) -> None:
    with psycopg.connect(own_dsn, autocommit=True) as conn:
        install(conn)
        add_jobs(conn, "plain", JOBS)
        fleet = worker(database_url=own_dsn, evidence_dsn=own_dsn, **PATIENT)
        wait_until(lambda: looking.states(conn).get("succeeded", 0) > 5, 20, "load")
        ours = "SELECT pid FROM pg_stat_activity WHERE application_name ~ '^rw:.*:control$' LIMIT 1"
        pid = looking.scalar(conn, ours)
    if fault == "kill_backend":
        own_server.kill_backend(pid)
    else:
        getattr(own_server, fault)()
        own_server.start()
    with reconnected(own_dsn) as conn:
        judge(conn, fleet)


def reconnected(dsn: str) -> Connection:
    """A connection once the server takes one again."""

    def connect() -> Connection | None:
        try:
            return psycopg.connect(dsn, autocommit=True)
        except psycopg.OperationalError:
            return None

    found = wait_until(connect, 30, "the server back")
    assert found is not None
    return found


def test_a_frozen_server_charges_nobody(
    worker: Worker, own_server: BreakableServer, own_dsn: str
) -> None:
    """Frozen for longer than a query may take, thawed before a lease runs out."""
    with psycopg.connect(own_dsn, autocommit=True) as conn:
        install(conn)
        add_jobs(conn, "plain", JOBS)
        fleet = worker(database_url=own_dsn, evidence_dsn=own_dsn, **PATIENT)
        wait_until(lambda: looking.states(conn).get("succeeded", 0) > 5, 20, "load")
        own_server.freeze()
        fleet.wait_event("claim_failed", 20)
        own_server.thaw()
        judge(conn, fleet)


def test_resets_again_and_again_charge_nobody(
    proxied: Worker, truth: Connection, proxy: Proxy
) -> None:
    add_jobs(truth, "plain", JOBS)
    fleet = proxied(**PATIENT)
    pause = threading.Event()
    wait_until(lambda: looking.states(truth).get("succeeded", 0) > 5, 20, "load")
    for _ in range(10):
        proxy.reset(app="rw:*")
        pause.wait(0.3)  # time for some work between one fault and the next
    judge(truth, fleet)


def test_half_open_connections_are_left_for_new_ones(
    proxied: Worker, truth: Connection, proxy: Proxy
) -> None:
    add_jobs(truth, "plain", JOBS)
    fleet = proxied(**PATIENT)
    wait_until(lambda: looking.states(truth).get("succeeded", 0) > 5, 20, "load")
    proxy.set_mode(Mode.HALF_OPEN, app="rw:*")
    proxy.heal()  # new connections are well; the old ones stay silent for ever
    judge(truth, fleet)


@pytest.mark.parametrize(
    ("mode", "seconds"), [(Mode.ONE_BYTE, 0.0), (Mode.DELAY, 0.05)], ids=["bytes", "slow"]
)
def test_a_dawdling_network_only_takes_longer(
    proxied: Worker, truth: Connection, proxy: Proxy, mode: Mode, seconds: float
) -> None:
    proxy.set_mode(mode, app="rw:*", seconds=seconds)
    add_jobs(truth, "plain", JOBS[:30])
    fleet = proxied(**PATIENT)
    judge(truth, fleet)


def test_a_refusing_server_is_waited_for_from_the_start(
    proxied: Worker, truth: Connection, proxy: Proxy
) -> None:
    proxy.refuse()
    add_jobs(truth, "plain", JOBS[:10])
    fleet = proxied(**PATIENT)
    fleet.wait_event("claim_failed", 20)
    assert fleet.process.poll() is None
    proxy.heal()
    judge(truth, fleet)
    assert os.path.exists(f"/proc/{fleet.pid}")
