"""Expiry holds back exactly after outages: the deciding, on made-up times."""

from __future__ import annotations

import pytest

from reliable_worker.maintenance.holdback import Holdback

LEASE = 30.0


@pytest.fixture
def holdback() -> Holdback:
    return Holdback(LEASE)


def test_nothing_is_held_back_without_an_outage(holdback: Holdback) -> None:
    assert not holdback.holding(0.0)
    holdback.answered("reaper", 1.0, 1.1)
    assert not holdback.holding(1.1)


def test_an_outage_holds_for_as_long_as_it_lasted(holdback: Holdback) -> None:
    holdback.failed("reaper", 100.0)
    holdback.failed("reaper", 105.0)
    holdback.answered("reaper", 111.9, 112.0)
    assert holdback.holding(112.0)
    assert holdback.holding(123.9)
    assert not holdback.holding(124.0)


def test_a_long_outage_holds_for_one_lease(holdback: Holdback) -> None:
    holdback.failed("reaper", 100.0)
    holdback.answered("reaper", 1000.0, 1000.0)
    assert holdback.holding(1029.9)
    assert not holdback.holding(1030.0)


def test_a_blip_shorter_than_a_third_of_the_lease_holds_nothing(holdback: Holdback) -> None:
    holdback.failed("reaper", 100.0)
    holdback.answered("reaper", 109.0, 110.0)
    assert not holdback.holding(110.0)


def test_one_late_answer_is_an_outage(holdback: Holdback) -> None:
    holdback.answered("reaper", 100.0, 111.0)
    assert holdback.holding(121.9)
    assert not holdback.holding(122.0)


def test_idle_time_between_ticks_does_not_count(holdback: Holdback) -> None:
    """As when the process was stopped, or the machine slept, between two statements."""
    holdback.answered("reaper", 100.0, 100.1)
    holdback.answered("reaper", 500.0, 500.1)
    assert not holdback.holding(500.1)


def test_a_success_ends_the_count(holdback: Holdback) -> None:
    holdback.failed("reaper", 100.0)
    holdback.answered("reaper", 101.0, 101.1)
    holdback.failed("reaper", 120.0)
    holdback.answered("reaper", 121.0, 121.1)
    assert not holdback.holding(121.1)


def test_lanes_are_counted_apart(holdback: Holdback) -> None:
    """One lane's success must not hide the other's outage, nor make its failures one outage."""
    holdback.failed("reaper", 100.0)
    holdback.answered("census", 105.0, 105.1)
    holdback.answered("reaper", 112.0, 112.0)
    assert holdback.holding(112.0)


def test_a_later_short_outage_does_not_shorten_the_hold(holdback: Holdback) -> None:
    holdback.failed("reaper", 100.0)
    holdback.answered("reaper", 129.0, 129.0)
    holdback.failed("census", 118.0)
    holdback.answered("census", 130.0, 130.0)
    assert holdback.holding(157.9)
    assert not holdback.holding(158.0)
