"""Where scans start and how the full scan walks: nothing below the mark is ever forgotten."""

from __future__ import annotations

import itertools
import math

from reliable_worker.maintenance.marks import SLACK_SECONDS, FullScan, Marks
from reliable_worker.maintenance.pace import Pace, Reconnect


def walk(full: FullScan, mark: float, at: float, cost: float) -> list[tuple[float, float]]:
    """A whole walk whose every slice costs the same."""
    slices = []
    while full.due(at):
        slices.append(full.slice(mark))
        full.looked(cost, at)
    return slices


def test_before_the_first_full_scan_the_floor_is_the_beginning_of_time() -> None:
    marks = Marks()
    assert marks.floor == -math.inf
    marks.ticked(1000.0, None)
    assert (marks.mark, marks.floor) == (990.0, -math.inf)
    walk(marks.full, marks.mark, at=5.0, cost=0.0)
    assert marks.floor == 990.0


def test_the_mark_stays_below_the_oldest_claim_running() -> None:
    marks = Marks()
    marks.ticked(1000.0, 950.0)
    assert marks.mark == 950.0 - SLACK_SECONDS
    marks.ticked(1001.0, None)
    assert marks.mark == 1001.0 - SLACK_SECONDS


def test_a_clock_set_back_lowers_the_mark() -> None:
    marks = Marks()
    marks.ticked(10_000.0, None)
    marks.ticked(6_400.0, None)
    assert marks.mark == 6_390.0
    marks.ticked(6_401.0, 9_999.0)  # claimed before the clock was set back
    assert marks.mark == 6_391.0


def test_a_find_of_the_full_scan_lowers_the_mark_and_never_lifts_it() -> None:
    marks = Marks()
    marks.ticked(1000.0, None)
    marks.lower(400.0)
    assert marks.mark == 390.0
    marks.lower(700.0)
    assert marks.mark == 390.0


def test_the_slices_of_a_full_scan_leave_no_gap() -> None:
    slices = walk(FullScan(), mark=2e9, at=5.0, cost=0.0)
    assert slices[0][1] == 2e9
    assert slices[-1][0] == -math.inf
    assert all(later[1] == earlier[0] for earlier, later in itertools.pairwise(slices))
    assert len(slices) < 30  # doubling: the whole of time in a few dozen probes


def test_a_full_scan_rests_ten_seconds_or_thirty_times_its_cost() -> None:
    full = FullScan()
    walk(full, mark=2e9, at=100.0, cost=0.0)
    assert not full.due(109.9)
    assert full.due(110.0)
    slices = walk(full, mark=2e9, at=200.0, cost=0.09)
    assert not full.due(200.0 + 30 * 0.09 * len(slices) - 0.1)
    assert full.due(200.0 + 30 * 0.09 * len(slices) + 0.1)


def test_a_slice_cut_by_its_budget_is_halved_and_tried_again() -> None:
    full = FullScan()
    first = full.slice(1000.0)
    full.cut(3.0)
    again = full.slice(1000.0)
    assert again[1] == first[1] == 1000.0
    assert again[1] - again[0] == (first[1] - first[0]) / 2
    for _ in range(20):
        full.cut(3.0)
    assert full.slice(1000.0) == (999.0, 1000.0)  # no smaller than a second
    full.looked(1.0, 5.0)
    assert full.slice(1000.0) == (998.0, 999.0)  # goes on, no wider while slices are dear
    full.looked(0.01, 5.0)
    assert full.slice(1000.0) == (996.0, 998.0)


def test_the_last_slice_can_be_cut_too() -> None:
    full = FullScan()
    while full.slice(2e9)[0] != -math.inf:
        full.looked(0.0, 5.0)
    full.cut(3.0)
    since, before = full.slice(2e9)
    assert math.isfinite(since)
    assert since < before


def test_a_dear_service_comes_less_often_and_a_failed_one_no_sooner() -> None:
    pace = Pace(1.0)
    pace.began(100.0)
    assert 100.9 <= pace.due_at <= 101.0
    pace.cost(0.001, 100.001)
    assert pace.due_at <= 101.0
    pace.cost(0.5, 100.5)
    assert pace.due_at == 115.0


def test_reconnects_are_jittered_and_bounded() -> None:
    reconnect = Reconnect()
    pauses = [reconnect.pause() for _ in range(200)]
    assert max(pauses) <= Reconnect.MOST_SECONDS
    assert pauses[0] <= Reconnect.FIRST_SECONDS
    assert len(set(pauses)) > 100
    assert all(1.0 <= Reconnect().pause(refused=True) <= 2.0 for _ in range(50))
    reconnect.succeeded()
    assert reconnect.pause() <= Reconnect.FIRST_SECONDS
