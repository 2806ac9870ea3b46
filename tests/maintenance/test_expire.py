"""The expiry service: every lapsed lease is found, wherever it hides, and none too early."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.events import Event
from reliable_worker.maintenance.expire import Expire
from reliable_worker.maintenance.holdback import Holdback
from reliable_worker.maintenance.lane import Lane
from reliable_worker.maintenance.marks import Marks
from reliable_worker.maintenance.reaper import Reaper
from tests.fixtures.configuration import make_settings
from tests.fixtures.waiting import wait_until
from tests.maintenance.rows import add, add_running, get

MakeLane = Callable[..., Lane]
LEASE = 3


class Fresh:
    """An expiry service as a process has it that has just begun, on a server that is no newborn."""

    def __init__(self, dsn: str, conn: psycopg.Connection) -> None:
        self.settings = make_settings(dsn, lease_seconds=LEASE)
        self.marks = Marks()
        self.holdback = Holdback(LEASE)
        self.service = Expire(self.settings, self.marks, self.holdback)
        age = "SELECT clock_timestamp() - pg_postmaster_start_time() > make_interval(secs => %s)"
        wait_until(lambda: conn.execute(age, (LEASE,)).fetchone() == (True,), 20, "a grown server")


@pytest.fixture
def fresh(dsn: str, conn: psycopg.Connection) -> Fresh:
    return Fresh(dsn, conn)


@pytest.mark.parametrize("claimed_seconds_ago", [0.0, 9.0, 11.0, 3600.0, 40 * 365 * 86400.0])
def test_a_lapsed_lease_is_found_however_old_its_claim(
    conn: psycopg.Connection, make_lane: MakeLane, fresh: Fresh, claimed_seconds_ago: float
) -> None:
    """The first tick starts just below now; the full scan that begins at once finds the rest."""
    job = add_running(conn, lease_seconds=-1, claimed_seconds_ago=claimed_seconds_ago)
    lane = make_lane()
    taken = [fresh.service.run_once(lane), fresh.service.run_once(lane)]
    assert sum(taken) == 1
    assert get(conn, job)["state"] == "ready"
    assert fresh.marks.full.complete


def test_a_claim_dated_in_the_future_is_found(
    conn: psycopg.Connection, make_lane: MakeLane, fresh: Fresh
) -> None:
    """As after the database's clock was set back."""
    job = add_running(conn, lease_seconds=-1, claimed_seconds_ago=-3600)
    fresh.service.run_once(make_lane())
    assert get(conn, job)["state"] == "ready"


def test_a_row_without_claim_time_is_found(
    conn: psycopg.Connection, make_lane: MakeLane, fresh: Fresh
) -> None:
    job = add_running(conn, lease_seconds=-1)
    conn.execute("UPDATE jobs SET claimed_at = NULL")
    assert fresh.service.run_once(make_lane()) == 1
    assert get(conn, job)["state"] == "ready"


def test_a_row_that_slips_below_the_mark_is_found_by_the_next_full_scan(
    conn: psycopg.Connection, make_lane: MakeLane, fresh: Fresh
) -> None:
    lane = make_lane()
    fresh.service.run_once(lane)
    job = add_running(conn, lease_seconds=-1, claimed_seconds_ago=3600)
    assert fresh.service.run_once(lane) == 0  # the mark is above it, the full scan rests
    fresh.marks.full._due_at = boottime()
    fresh.service.run_once(lane)
    assert fresh.service.due_at() <= boottime()  # found: taken in a tick at once
    assert fresh.service.run_once(lane) == 1
    assert get(conn, job)["state"] == "ready"


def test_nothing_expires_while_it_holds_back(
    conn: psycopg.Connection, make_lane: MakeLane, fresh: Fresh
) -> None:
    job = add_running(conn, lease_seconds=-1)
    lane = make_lane()
    fresh.service.run_once(lane)
    assert get(conn, job)["state"] == "ready"
    again = add_running(conn, lease_seconds=-1)
    fresh.holdback.answered("x", boottime() - LEASE / 2, boottime())
    assert fresh.service.run_once(lane) == 0
    assert get(conn, again)["state"] == "running"
    wait_until(lambda: fresh.service.run_once(lane), 20, "the end of the hold")
    assert get(conn, again)["state"] == "ready"


def test_more_than_a_batch_is_taken_in_one_tick(
    conn: psycopg.Connection, make_lane: MakeLane, fresh: Fresh, seen: list[Event]
) -> None:
    conn.execute(
        "INSERT INTO jobs (idempotency_key, payload, state, lease_owner, lease_until, claimed_at,"
        " attempts, max_attempts, fence) SELECT n::text, '{}', 'running', 'x.0',"
        " now() - interval '1 s', now(), 1, 1 + (n > 1)::int, 1 FROM generate_series(1, 1201) AS n"
    )
    assert fresh.service.run_once(make_lane()) == 1201
    counts = [event.fields["count"] for event in seen if event.name == "jobs_expired"]
    assert counts == [500, 500, 201]
    (dead,) = [event.fields for event in seen if event.name == "job_failed"]
    assert (dead["reason"], dead["outcome"], dead["owner"]) == ("expired", "dead", "x.0")
    assert fresh.service.due_at() > boottime()


def test_the_sweep_takes_every_exhausted_row(
    conn: psycopg.Connection, make_lane: MakeLane, fresh: Fresh, seen: list[Event]
) -> None:
    conn.execute(
        "INSERT INTO jobs (idempotency_key, payload, attempts)"
        " SELECT n::text, '{}', 5 + n % 2 FROM generate_series(1, 600) AS n"
    )
    kept = add(conn, attempts=4)
    reaper = Reaper(fresh.settings)
    assert reaper.run_once(make_lane()) == 600
    assert get(conn, kept)["state"] == "ready"
    assert [event.fields["count"] for event in seen if event.name == "jobs_buried"] == [600]
    assert reaper.run_once(make_lane()) == 0
    assert len([event for event in seen if event.name == "jobs_buried"]) == 1
