"""A database that is gone for 45 s under load costs nobody an attempt; claims resume within 5 s.

Every budget stands at its default, the lease of 30 s included: this is the one slow test.
"""

import threading
from collections.abc import Callable
from typing import Any

import psycopg

from tests.faults.cluster import BreakableServer
from tests.faults.evidence import add_jobs, install
from tests.faults.invariants import assert_sound
from tests.fixtures.commands import Fleet
from tests.fixtures.waiting import wait_until
from tests.truths import looking

OUTAGE_SECONDS = 45.0
RESUME_SECONDS = 5.0
Worker = Callable[..., Fleet]


def connection(dsn: str) -> psycopg.Connection[Any]:
    return psycopg.connect(dsn, autocommit=True)


def test_an_outage_charges_no_attempt_and_no_crash(
    worker: Worker, own_server: BreakableServer, own_dsn: str
) -> None:
    with connection(own_dsn) as conn:
        install(conn)
        add_jobs(conn, "plain", ['{"seconds": 0.2}'] * 600)
        fleet = worker(
            database_url=own_dsn,
            evidence_dsn=own_dsn,
            lease_seconds=30,
            poll_seconds=0.5,
            claim_pause_seconds=1,
            reap_seconds=1,
            workers=8,
            processes=2,
        )
        wait_until(lambda: looking.states(conn).get("succeeded", 0) > 20, 30, "load")
    own_server.stop()
    threading.Event().wait(OUTAGE_SECONDS)  # the outage itself, not a wait for something
    own_server.start()
    with connection(own_dsn) as conn:
        back = looking.scalar(conn, "SELECT clock_timestamp()")
        claimed = "SELECT min(at) FROM audit WHERE at > %s AND new_state = 'running'"
        wait_until(lambda: looking.scalar(conn, claimed, back), 30, "a claim")
        resumed = (looking.scalar(conn, claimed, back) - back).total_seconds()
        assert resumed <= RESUME_SECONDS
        looking.wait_all(conn, "succeeded", 90)
        assert looking.scalar(conn, "SELECT max(attempts) FROM jobs") == 1
        assert looking.scalar(conn, "SELECT max(new_crashes) FROM audit") == 0
        expired = "SELECT count(*) FROM audit WHERE statement LIKE '-- expire%%'"
        assert looking.scalar(conn, expired) == 0
        assert not fleet.find("child_restarted")
        assert not fleet.find("job_failed")
        assert fleet.find("claim_failed")
        assert_sound(conn)
