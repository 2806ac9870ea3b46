"""Waking: the names of what a claim would take, and only those, reach who listens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

import psycopg
import pytest

from reliable_worker.maintenance.eligible import Eligible
from reliable_worker.maintenance.lane import Lane
from reliable_worker.maintenance.served import Served
from reliable_worker.maintenance.waking import PAYLOAD_BYTES, Waking, pack
from reliable_worker.postgres import upkeep
from reliable_worker.postgres.database import Connection
from tests.fixtures.configuration import make_settings
from tests.maintenance.rows import add, add_running

MakeLane = Callable[..., Lane]


class Ears:
    """A waking service, the listener it wakes and the parent it tells."""

    def __init__(
        self, dsn: str, listener: psycopg.Connection, queues: tuple[str, ...] = ()
    ) -> None:
        self.told: list[Mapping[str, object]] = []
        self.served = Served(queues)
        self.served.set_kinds(["message"])
        self.waking = Waking(make_settings(dsn), self.served, self.told.append)
        self._listener = listener

    def heard(self) -> list[list[object]]:
        """Every combination of every notification that has come, in order."""
        self._listener.execute("SELECT 1")
        return [
            one
            for notify in self._listener.notifies(timeout=0.2)
            for one in json.loads(notify.payload)
        ]


@pytest.fixture
def listener(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True) as listening:
        listening.execute("LISTEN reliable_worker")
        yield listening


@pytest.fixture
def ears(dsn: str, listener: psycopg.Connection) -> Ears:
    return Ears(dsn, listener)


def test_what_a_claim_would_take_is_named_once(
    conn: psycopg.Connection, make_lane: MakeLane, ears: Ears
) -> None:
    add(conn, queue="a", priority=9)
    add(conn, queue="a", priority=9)
    add(conn, queue="b", priority=0)
    add(conn, queue="scheduled", available_at="9999-01-01")
    add(conn, queue="spent", attempts=5)
    add(conn, queue="suspect", crashes=1)
    add(conn, queue="foreign", kind="other")
    add_running(conn, queue="running")
    assert ears.waking.run_once(make_lane()) == 2
    assert ears.heard() == [["a", "message", 9], ["b", "message", 0]]


def test_nobody_is_woken_for_nothing(
    conn: psycopg.Connection, make_lane: MakeLane, ears: Ears
) -> None:
    assert ears.waking.run_once(make_lane()) == 0
    assert ears.heard() == []


def test_only_served_queues_are_named(
    conn: psycopg.Connection, dsn: str, listener: psycopg.Connection, make_lane: MakeLane
) -> None:
    ears = Ears(dsn, listener, queues=("b", "c"))
    for queue in "abcd":
        add(conn, queue=queue)
        add(conn, queue=queue, crashes=1)
    ears.waking.run_once(make_lane())
    assert ears.heard() == [["b", "message", 5], ["c", "message", 5]]
    assert ears.told == [{"say": "suspects", "count": 2}]


def test_before_the_kinds_are_known_it_is_never_due(ears: Ears) -> None:
    ears.served.set_kinds([])
    assert ears.waking.due_at() == float("inf")
    ears.served.set_kinds(["message"])
    assert ears.waking.due_at() == 0.0


def test_more_names_than_fit_are_told_at_the_next_tick(
    conn: psycopg.Connection, make_lane: MakeLane, ears: Ears
) -> None:
    """Names of 128 bytes fill a notification with some fifty: the rest has its turn."""
    queues = [f"{number:03}" + "ü" * 62 for number in range(120)]
    for queue in queues:
        add(conn, queue=queue)
    lane = make_lane()
    named = [ears.waking.run_once(lane) for _ in range(4)]
    heard = [one[0] for one in ears.heard()]
    assert heard[: len(queues)] == queues
    assert sum(named[:3]) == len(queues)
    assert named[3] == named[0]  # and then from the beginning


@pytest.mark.parametrize("name", ["x" * 128, "ü" * 64, '"' * 128, "\\" * 128, "\x01" * 128])
def test_a_payload_fits_and_always_names_one(name: str) -> None:
    found = [upkeep.Combination(name, name, 5, True)] * 1000
    payload, named = pack(found)
    assert len(payload.encode()) <= PAYLOAD_BYTES
    assert json.loads(payload) == [[name, name, 5]] * len(named)
    assert len(named) >= 1


def test_suspects_are_counted_and_their_end_is_told(
    conn: psycopg.Connection, make_lane: MakeLane, ears: Ears
) -> None:
    lane = make_lane()
    ears.waking.run_once(lane)
    ears.waking.run_once(lane)
    assert ears.told == [{"say": "suspects", "count": 0}]  # once, whatever a predecessor said
    job = add(conn, crashes=1)
    add(conn, crashes=2, kind="other")
    add(conn, crashes=1, available_at="9999-01-01")
    add(conn, crashes=1, attempts=5)
    ears.waking.run_once(lane)
    ears.waking.run_once(lane)
    assert ears.told[1:] == [{"say": "suspects", "count": 1}] * 2
    conn.execute("UPDATE jobs SET crashes = 0 WHERE id = %s", (job,))
    ears.waking.run_once(lane)
    ears.waking.run_once(lane)
    assert ears.told[3:] == [{"say": "suspects", "count": 0}]


def test_the_loose_scan_goes_on_where_it_ended(
    conn: psycopg.Connection, upkeep_conn: Connection
) -> None:
    for queue, kind, priority in [("a", "x", 1), ("a", "x", 2), ("a", "y", 0), ("b", "x", 0)]:
        add(conn, queue=queue, kind=kind, priority=priority)
        add(conn, queue=queue, kind=kind, priority=priority)

    def names(after: tuple[str, str, int], limit: int) -> list[str]:
        found = upkeep.claimable(upkeep_conn, ["x", "y"], [], after, limit)
        return [f"{one.queue}{one.kind}{one.priority}" for one in found]

    assert names(("", "", -1), 100) == ["ax1", "ax2", "ay0", "bx0"]
    assert names(("", "", -1), 3) == ["ax1", "ax2", "ay0"]
    assert names(("a", "y", 0), 3) == ["bx0"]
    assert names(("b", "x", 0), 3) == []


def test_a_question_gets_its_answer_with_the_count(
    conn: psycopg.Connection, make_lane: MakeLane
) -> None:
    told: list[Mapping[str, object]] = []
    served = Served([])
    eligible = Eligible(served, told.append)
    lane = make_lane()
    eligible.ask({"say": "eligible", "ask": 1})
    assert eligible.due_at() == float("inf")  # without kinds nothing is known
    served.set_kinds(["message"])
    assert eligible.due_at() == 0.0
    eligible.run_once(lane)
    assert eligible.due_at() == float("inf")
    add(conn)
    add(conn, crashes=1)
    add(conn, attempts=5)
    add(conn, kind="other")
    add(conn, available_at="9999-01-01")
    add_running(conn)
    eligible.ask({"say": "eligible", "ask": 2})
    eligible.ask({"say": "eligible", "ask": 3})
    eligible.run_once(lane)
    assert told == [
        {"say": "eligible", "ask": 1, "count": 0},
        {"say": "eligible", "ask": 3, "count": 2},
    ]
