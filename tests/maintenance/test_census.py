"""The census tells the truth about every queue, up to its limit, by the database's clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import psycopg
import pytest

from reliable_worker.jobs.deadline import boottime
from reliable_worker.maintenance.census import LEAST_COUNTED, MOST_COUNTED, Census
from reliable_worker.maintenance.lane import Lane
from reliable_worker.maintenance.marks import Marks
from reliable_worker.postgres import upkeep
from reliable_worker.postgres.database import Connection
from tests.fixtures.configuration import make_settings
from tests.fixtures.waiting import wait_until
from tests.maintenance.rows import add, add_running

MakeLane = Callable[..., Lane]


@pytest.fixture
def told() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def census(dsn: str, told: list[dict[str, Any]]) -> Census:
    def say(message: Mapping[str, object]) -> None:
        told.append(dict(message))

    return Census(make_settings(dsn), Marks(), say)


def test_every_state_of_every_queue_is_counted(
    conn: psycopg.Connection, make_lane: MakeLane, census: Census, told: list[dict[str, Any]]
) -> None:
    for kind, priority in [("x", 1), ("x", 2), ("y", 0)]:
        add(conn, queue="a", kind=kind, priority=priority)
    conn.execute("UPDATE jobs SET available_at = now() - interval '1 hour' WHERE kind = 'y'")
    add(conn, queue="a", available_at="9999-01-01")
    add(conn, queue="suspects", crashes=1)
    add(conn, queue="scheduled", available_at="9999-01-01")
    add_running(conn, queue="a")
    add_running(conn, queue="a", lease_seconds=-1, claimed_seconds_ago=3600)
    add(conn, queue="dead only", state="dead", ended_at="now()")
    add(conn, queue="done", state="succeeded", completed_at="now()", ended_at="now()")
    before = boottime()
    assert census.run_once(make_lane()) == 4
    (message,) = told
    queues = message["queues"]
    assert before <= message["at"] <= boottime()
    clock = conn.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
    assert clock is not None
    assert 0 <= clock[0] - message["unix"] < 60
    age = queues["a"].pop("oldest_ready_age_seconds")
    assert 3600 <= age < 3660
    assert queues["a"] == {"ready": 4, "running": 2, "expired": 1, "dead": 0}
    assert queues["suspects"]["ready"] == 1
    assert queues["scheduled"]["ready"] == 1
    assert queues["scheduled"]["oldest_ready_age_seconds"] == 0
    assert queues["dead only"]["dead"] == 1
    assert "done" not in queues


def test_numbers_stop_at_the_limit(conn: psycopg.Connection, upkeep_conn: Connection) -> None:
    for _ in range(5):
        add(conn)
        add(conn, crashes=1)
        add_running(conn)
        add(conn, state="dead", ended_at="now()")
    counted = upkeep.census(upkeep_conn, -math.inf, limit=3)["default"]
    assert (counted.ready, counted.running, counted.dead) == (3, 3, 3)


def test_a_census_cut_by_its_budget_counts_less_next_time(
    conn: psycopg.Connection,
    dsn: str,
    make_lane: MakeLane,
    census: Census,
    told: list[dict[str, Any]],
) -> None:
    add(conn)
    lane = make_lane()
    with psycopg.connect(dsn) as locker:
        locker.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        lane.call(lambda ours: ours.execute("SET statement_timeout = '50ms'"))
        for _ in range(10):
            with pytest.raises(psycopg.errors.QueryCanceled):
                census.run_once(lane)
        assert census._limit == LEAST_COUNTED
        assert told == []
    lane.call(lambda ours: ours.execute("SET statement_timeout = '3s'"))
    census.run_once(lane)
    assert told[0]["queues"]["default"]["ready"] == 1
    assert LEAST_COUNTED < census._limit < MOST_COUNTED


def test_what_pins_vacuum_is_told_with_the_dead_rows_it_leaves(
    dsn: str,
    conn: psycopg.Connection,
    make_lane: MakeLane,
    census: Census,
    told: list[dict[str, Any]],
) -> None:
    for _ in range(3):
        add(conn)
    conn.execute("UPDATE jobs SET priority = 1")
    conn.execute("SELECT pg_stat_force_next_flush()")
    with psycopg.connect(dsn) as pin:
        pin.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        pin.execute("SELECT 1 FROM jobs")
        lane = make_lane()

        def aged() -> bool:
            census.run_once(lane)
            return float(told[-1]["database"]["oldest_transaction_age_seconds"]) > 0.3

        wait_until(aged, 30, "an age of the transaction")
        assert told[-1]["database"]["table_dead_tuples"] == {"jobs": 3}
        assert told[-1]["database"]["table_live_tuples"] == {"jobs": 3}
    census.run_once(lane)
    assert told[-1]["database"]["oldest_transaction_age_seconds"] == 0
