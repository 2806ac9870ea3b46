"""The pruner: what ended long enough ago goes, with its history; nothing else, and nobody waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from reliable_worker.jobs.events import Event
from reliable_worker.maintenance import pruner
from reliable_worker.maintenance.lane import Lane
from reliable_worker.maintenance.pruner import Pruner
from reliable_worker.postgres import store
from reliable_worker.postgres.store import Combination
from tests.fixtures.configuration import make_settings
from tests.fixtures.waiting import wait_until
from tests.maintenance.rows import add, add_running

Connection = psycopg.Connection[Any]
MakeLane = Callable[..., Lane]


def ended(conn: Connection, state: str, days: float) -> int:
    """A job enqueued and ended so many days ago."""
    job = add(conn)
    conn.execute(
        "UPDATE jobs SET state = %(state)s, created_at = t, ended_at = t,"
        " completed_at = CASE WHEN %(state)s = 'succeeded' THEN t END"
        " FROM (SELECT now() - make_interval(secs => %(days)s * 86400) AS t) AS past"
        " WHERE id = %(id)s",
        {"state": state, "days": days, "id": job},
    )
    return job


def ids(conn: Connection) -> list[int]:
    return [row[0] for row in conn.execute("SELECT id FROM jobs ORDER BY id").fetchall()]


def run(service: Pruner, lane: Lane) -> int:
    """Ticks until the walk has begun again."""
    total = service.run_once(lane)
    while service._after:
        total += service.run_once(lane)
    return total


@pytest.mark.quick
def test_each_state_is_kept_for_its_own_time(
    conn: Connection, dsn: str, make_lane: MakeLane, seen: list[Event]
) -> None:
    old = [("succeeded", 8), ("cancelled", 8), ("dead", 91)]
    young = [("succeeded", 6), ("cancelled", 6), ("dead", 89)]
    gone = [ended(conn, *one) for one in old]
    kept = [ended(conn, *one) for one in young]
    kept += [add(conn, created_at="2020-01-01"), add_running(conn, created_at="2020-01-01")]
    for job in (gone[0], kept[0]):
        conn.execute(
            "INSERT INTO job_attempts (job_id, attempt, outcome) VALUES (%s, 1, 'failed')", [job]
        )
    assert run(Pruner(make_settings(dsn)), make_lane()) == 3
    assert ids(conn) == kept
    assert conn.execute("SELECT job_id FROM job_attempts").fetchall() == [(kept[0],)]
    (event,) = [e for e in seen if e.name == "jobs_pruned"]
    fields = {name: event.fields[name] for name in ("succeeded", "cancelled", "dead", "count")}
    assert fields == {"succeeded": 1, "cancelled": 1, "dead": 1, "count": 3}


def test_zero_days_keep_for_ever(conn: Connection, dsn: str, make_lane: MakeLane) -> None:
    kept = [ended(conn, state, 5_000) for state in ("succeeded", "cancelled", "dead")]
    for given in ({"keep_dead_days": 90}, {}):
        values = {"keep_succeeded_days": 0, "keep_cancelled_days": 0, "keep_dead_days": 0, **given}
        expected = 1 if given else 0
        assert run(Pruner(make_settings(dsn, **values)), make_lane()) == expected
    assert ids(conn) == kept[:2]


def test_the_walk_passes_what_is_kept_and_stops_at_what_is_young(
    conn: Connection, dsn: str, make_lane: MakeLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old jobs behind whole slices of kept ones are found; of the young only a slice is read."""
    monkeypatch.setattr(pruner, "SLICE_ROWS", 10)
    conn.execute(
        "INSERT INTO jobs (idempotency_key, payload, created_at)"
        " SELECT 'old' || n, '{}', '2020-01-01' FROM generate_series(1, 50) AS n"
    )
    ended(conn, "succeeded", 8)
    conn.execute(
        "INSERT INTO jobs (idempotency_key, payload) SELECT 'k' || n, '{}'"
        " FROM generate_series(1, 200) AS n"
    )
    calls: list[object] = []
    lane = make_lane()
    call = lane.call

    def counted(ask: Callable[..., object]) -> object:
        calls.append(ask)
        return call(ask)

    monkeypatch.setattr(lane, "call", counted)
    assert run(Pruner(make_settings(dsn)), lane) == 1
    assert len(calls) < 15
    assert len(ids(conn)) == 250


def test_it_neither_waits_for_anybody_nor_is_waited_for(
    conn: Connection, dsn: str, make_lane: MakeLane
) -> None:
    """A locked row is left for later; while rows are deleted but not committed, claims go on."""
    locked, free = ended(conn, "succeeded", 8), ended(conn, "succeeded", 8)
    ready = add(conn)
    with psycopg.connect(dsn) as other, psycopg.connect(dsn) as pruning:
        other.execute("SELECT 1 FROM jobs WHERE id = %s FOR UPDATE", [locked])
        assert run(Pruner(make_settings(dsn)), make_lane()) == 1
        assert ids(conn) == [locked, ready]
        other.rollback()
        pruning.execute("DELETE FROM jobs WHERE id = %s", [locked])
        conn.execute("SET lock_timeout = '100ms'")
        place = [(Combination("default", "message", 5), 0)]
        claim = store.claim(conn, place, ["o"], lease_seconds=30, margin_seconds=3)
        assert [job.lease.id for job in claim.jobs] == [ready]
    assert free not in ids(conn)


def test_the_history_is_bounded_by_age_and_by_number(
    conn: Connection, dsn: str, make_lane: MakeLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruner, "MOST_ATTEMPTS", 5)
    conn.execute(
        "INSERT INTO job_attempts (job_id, attempt, outcome, ended_at) SELECT 1, n, 'failed',"
        " CASE WHEN n <= 3 THEN timestamptz '2020-01-01' ELSE now() END"
        " FROM generate_series(1, 20) AS n"
    )
    conn.execute(
        "INSERT INTO operator_actions (operator, action, acted_at)"
        " VALUES ('a', 'retry', '2020-01-01'), ('b', 'retry', now())"
    )
    conn.execute(
        "INSERT INTO worker_processes (boot, host, pid, role, slots, kinds, queues, seen_at)"
        " SELECT b, 'h', 1, 'worker', 1, '{}', '{}', t"
        " FROM (VALUES ('a', timestamptz '2020-01-01'), ('b', now())) AS v (b, t)"
    )
    run(Pruner(make_settings(dsn)), make_lane())
    left = conn.execute("SELECT attempt FROM job_attempts ORDER BY id").fetchall()
    assert [n for (n,) in left] == [16, 17, 18, 19, 20]
    assert conn.execute("SELECT operator FROM operator_actions").fetchall() == [("b",)]
    assert conn.execute("SELECT boot FROM worker_processes").fetchall() == [("b",)]


def test_a_running_fleet_prunes(conn: Connection, fleet: Callable[..., Any]) -> None:
    ended(conn, "succeeded", 8)
    one = fleet(prune_seconds=0.1)
    one.wait_event("jobs_pruned", 30, count=1)
    alive = "SELECT host, slots, 'message' = ANY(kinds) FROM worker_processes"
    wait_until(lambda: conn.execute(alive).fetchall(), 30, "a worker says that it lives")
    assert conn.execute("SELECT count(*) FROM jobs").fetchone() == (0,)
