"""Shows the parent's pure decisions: the pace of restarts, causes of death, who is stalled, and
when a drained queue is empty."""

from __future__ import annotations

import dataclasses
import random
import signal

import pytest

from reliable_worker.process import Role
from reliable_worker.supervisor.eligible import Eligibility
from reliable_worker.supervisor.obituary import (
    Obituaries,
    Obituary,
    cause_of,
    describe_exit,
)
from reliable_worker.supervisor.pace import START_BUDGET, Pace, StartBudget
from reliable_worker.supervisor.watch import Cause, Facts, verdict
from tests.fixtures.configuration import make_settings

pytestmark = pytest.mark.quick
SETTINGS = make_settings("postgresql:///none")  # lease 30 s, stall 15 s, job 20 s, grace 5 s


def test_restarts_slow_down_and_recover_after_a_healthy_minute() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    pace = Pace(random.Random(seed))
    delays = [pace.died(0.0) for _ in range(20)]
    for number, delay in enumerate(delays):
        longest = min(5.0, 0.1 * 2**number)
        assert longest / 2 <= delay <= longest
    assert pace.died(61.0) <= 0.1
    assert pace.died(59.0) > 0.05


def test_the_start_budget_counts_in_a_row_and_by_role() -> None:
    budget = StartBudget()
    assert not any(budget.died("worker") for _ in range(START_BUDGET - 1))
    budget.ready("worker")
    assert not any(budget.died("worker") for _ in range(START_BUDGET - 1))
    assert not budget.died("maintenance")
    assert budget.died("worker")


@pytest.mark.parametrize(
    ("code", "facts", "cause"),
    [
        (-signal.SIGKILL, {}, Cause.CRASH),
        (-signal.SIGSEGV, {"killed_for": Cause.STALL}, Cause.CRASH),
        (-signal.SIGABRT, {"killed_for": Cause.STALL}, Cause.STALL),
        (-signal.SIGKILL, {"killed_for": Cause.TIMEOUT}, Cause.TIMEOUT),
        (-signal.SIGKILL, {"killed_for": Cause.DRAIN, "draining": True}, Cause.DRAIN),
        (-signal.SIGKILL, {"draining": True}, Cause.CRASH),
        (0, {"draining": True}, Cause.DRAIN),
        (0, {"draining": True, "started": True}, Cause.DRAIN),
        (3, {"draining": True}, Cause.CRASH),
        (0, {"ready": True}, Cause.EXIT),
        (0, {"ready": True, "started": True}, Cause.CRASH),
        (0, {}, Cause.CRASH),
        (1, {"ready": True}, Cause.CRASH),
    ],
)
def test_causes(code: int, facts: dict[str, object], cause: Cause) -> None:
    known: dict[str, object] = {
        "killed_for": None,
        "ready": False,
        "draining": False,
        "started": False,
    }
    assert cause_of(code, **(known | facts)) is cause  # type: ignore[arg-type]


def test_an_exit_is_described_as_an_operator_says_it() -> None:
    assert describe_exit(1) == "exited with status 1"
    assert describe_exit(-9) == "killed by signal 9 (SIGKILL)"
    assert describe_exit(-40) == "killed by signal 40"


def _obituary(boot: str, **facts: object) -> Obituary:
    blank = Obituary(boot, Role.WORKER, Cause.EXIT, "exited with status 0", (), (), contact=False)
    return dataclasses.replace(blank, **facts)  # type: ignore[arg-type]


def test_only_the_dead_that_may_have_left_rows_are_urgent() -> None:
    obituaries = Obituaries()
    seen = [obituaries.urgent]
    for obituary in (_obituary("a"), _obituary("b", contact=True)):
        obituaries.add(obituary)
        seen.append(obituaries.urgent)
    obituaries.buried("b")
    obituaries.buried("unknown")
    seen.append(obituaries.urgent)
    obituaries.add(_obituary("c", started=((1, 1),)))
    seen.append(obituaries.urgent)
    assert seen == [False, False, True, False, True]
    assert [obituary.boot for obituary in obituaries] == ["a", "c"]


FACTS = Facts(
    now=1000.0,
    born_at=500.0,
    ready=True,
    beat_at=999.9,
    deadline=0.0,
    held=0,
    started=0,
    stuck=0,
    stuck_since=0.0,
    watched_since=400.0,
)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"beat_at": 985.5}, None),
        ({"beat_at": 984.0}, Cause.STALL),
        ({"beat_at": 984.0, "deadline": 1007.0}, None),
        ({"beat_at": 984.0, "deadline": 1005.0}, Cause.STALL),
        ({"beat_at": 984.0, "deadline": 990.0}, Cause.STALL),
        ({"beat_at": 984.0, "watched_since": 999.0}, None),
        ({"beat_at": 0.0, "born_at": 970.0, "ready": False}, None),
        ({"beat_at": 0.0, "born_at": 930.0, "ready": False}, Cause.STALL),
        ({"stuck": 1, "started": 2, "held": 2, "stuck_since": 990.0}, None),
        ({"stuck": 1, "started": 1, "held": 2, "stuck_since": 990.0}, None),
        ({"stuck": 1, "started": 1, "held": 1, "stuck_since": 1000.0}, Cause.TIMEOUT),
        ({"stuck": 1, "started": 2, "held": 2, "stuck_since": 900.0}, None),
        ({"stuck": 1, "started": 1, "held": 2, "stuck_since": 974.0}, Cause.TIMEOUT),
        ({"stuck": 2, "started": 2, "held": 2, "stuck_since": 1000.0}, Cause.TIMEOUT),
    ],
)
def test_verdicts(changes: dict[str, object], expected: Cause | None) -> None:
    facts = dataclasses.replace(FACTS, **changes)  # type: ignore[arg-type]
    assert verdict(facts, SETTINGS) is expected


def test_a_reading_counts_only_if_no_hand_has_moved_since_it_was_asked_for() -> None:
    eligibility = Eligibility()
    assert eligibility.question([("a", 1, 5)], 0.0) is None  # somebody holds something
    first = eligibility.question([("a", 0, 6)], 1.0)
    assert first is not None
    assert eligibility.question([("a", 0, 6)], 1.1) is None  # not twice
    assert not eligibility.answer(first, 0, [("a", 0, 8)])  # a claim came and went
    second = eligibility.question([("a", 0, 8)], 2.0)
    assert not eligibility.answer(first, 0, [("a", 0, 8)])  # an old answer
    assert not eligibility.answer(second, 3, [("a", 0, 8)])
    third = eligibility.question([("a", 0, 8)], 3.0)
    assert not eligibility.answer(third, 0, [("b", 0, 0)])  # another process by now
    fourth = eligibility.question([("b", 0, 0)], 4.0)
    assert eligibility.question([("b", 0, 0)], 10.0) is not None  # lost: asked again
    assert not eligibility.answer(fourth, 0, [("b", 0, 0)])
    assert eligibility.answer(5, 0, [("b", 0, 0)])
