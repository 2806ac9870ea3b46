"""A database that goes away for real: nothing is lost, nothing expires before its time."""

from __future__ import annotations

import signal
import time

import psycopg

from tests.faults.cluster import BreakableServer
from tests.fixtures.configuration import make_settings
from tests.fixtures.waiting import wait_until
from tests.maintenance.forked import SECONDS, forked
from tests.maintenance.rows import BOOT, add_running, get

LEASE = 3
# Longer than a lease, so that what was running at its start has lapsed at its end.
OUTAGE_SECONDS = 4.0
# The first statement to fail is sent at most a tick after the database fell silent.
TICK_SECONDS = 1.0


def test_an_obituary_waits_through_a_restart(own_server: BreakableServer, own_dsn: str) -> None:
    with psycopg.connect(own_dsn, autocommit=True) as conn:
        job = add_running(conn)
    with forked(make_settings(own_dsn, lease_seconds=LEASE)) as process:
        process.wait_ready()
        own_server.crash()
        process.bury(BOOT, "crash", error="killed by signal 9 (SIGKILL)", started=[[job, 1]])
        before = process.board.contact
        own_server.start()
        process.wait_for("buried", boot=BOOT)
        assert process.board.contact > before
        with psycopg.connect(own_dsn, autocommit=True) as conn:
            row = get(conn, job)
            assert (row["state"], row["crashes"], row["attempts"]) == ("ready", 1, 0)
        process.signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0


def test_expiry_holds_back_for_as_long_as_an_outage_lasted(
    own_server: BreakableServer, own_dsn: str
) -> None:
    """The server was silent; it is no younger for it, so that its youth holds nothing back."""
    age = "SELECT clock_timestamp() - pg_postmaster_start_time() > make_interval(secs => %s)"
    with forked(make_settings(own_dsn, lease_seconds=LEASE)) as process:
        process.wait_ready()
        with psycopg.connect(own_dsn, autocommit=True) as conn:
            wait_until(lambda: conn.execute(age, (LEASE,)).fetchone() == (True,), SECONDS, "age")
            job = add_running(conn, lease_seconds=LEASE)
        silent_since = time.monotonic()
        own_server.freeze()
        wait_until(
            lambda: time.monotonic() - silent_since > OUTAGE_SECONDS, SECONDS, "a long outage"
        )
        own_server.thaw()
        back_at = time.monotonic()
        with psycopg.connect(own_dsn, autocommit=True) as conn:
            wait_until(lambda: get(conn, job)["state"] == "ready", SECONDS, "expiry in the end")
        # A second is left to what the two clocks began with and to rounding.
        assert time.monotonic() - back_at >= min(OUTAGE_SECONDS - TICK_SECONDS, LEASE) - 1.0


def test_without_a_database_it_is_ready_and_leaves_when_told(
    own_server: BreakableServer, own_dsn: str
) -> None:
    """A database that refuses, and one whose connections hang: neither ends it nor keeps it."""
    for silence in (own_server.freeze_postmaster, own_server.stop):
        silence()
        with forked(make_settings(own_dsn)) as process:
            process.wait_for("ready")
            process.bury(BOOT, "exit")
            assert not process.board.ready
            process.signal(signal.SIGTERM)
            assert process.wait(SECONDS) == 0
        own_server.thaw()
