"""A runner outlives whatever its services raise, tells it sparingly, and shares its lane fairly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.errors import BudgetExceeded
from reliable_worker.jobs.events import Event
from reliable_worker.maintenance.lane import Lane
from reliable_worker.maintenance.runner import FAILURE_PAUSE_SECONDS, Runner, Service
from tests.fixtures.waiting import wait_until

MakeLane = Callable[..., Lane]
SECONDS = 20.0


class Counting:
    """A service that is due every `interval`, and raises `error` if there is one."""

    def __init__(self, name: str, interval: float, error: Exception | None = None) -> None:
        self.name = name
        self.error = error
        self.calls: list[float] = []
        self._interval = interval
        self._due_at = 0.0

    def due_at(self) -> float:
        return self._due_at

    def run_once(self, lane: Lane) -> int:
        self.calls.append(boottime())
        self._due_at = boottime() + self._interval
        if self.error is not None:
            raise self.error
        return 1


@contextmanager
def running(lane: Lane, *services: Service) -> Iterator[Runner]:
    runner = Runner(lane, services)
    runner.start()
    try:
        yield runner
    finally:
        runner.stop()
        runner.join(SECONDS)
        assert not runner.is_alive()


def test_a_lost_database_pauses_the_lane_and_is_told_once(
    make_lane: MakeLane, seen: list[Event]
) -> None:
    broken = Counting("expire", 0.0, BudgetExceeded("query_timeout_seconds", 3.0))
    with running(make_lane(), broken):
        wait_until(lambda: len(broken.calls) >= 6, SECONDS, "six tries")
        broken.error = None
        wait_until(lambda: len(broken.calls) >= 9, SECONDS, "it goes on")
    told = [event for event in seen if event.name == "reaper_failed"]
    assert [event.fields["service"] for event in told] == ["expire"]
    assert "query_timeout_seconds" in str(told[0].fields["error"])


def test_another_failure_rests_its_service_alone(make_lane: MakeLane, seen: list[Event]) -> None:
    broken = Counting("census", 0.0, ValueError("nonsense"))
    sound = Counting("waking", 0.01)
    with running(make_lane(), broken, sound):
        wait_until(lambda: len(broken.calls) >= 2, SECONDS, "a second try")
    first, second = broken.calls[:2]
    assert second - first >= FAILURE_PAUSE_SECONDS
    assert len([at for at in sound.calls if first < at < second]) >= 5
    assert [event.name for event in seen if event.name.endswith("_failed")] == ["census_failed"]


def test_a_busy_service_starves_no_other(make_lane: MakeLane) -> None:
    greedy, modest = Counting("obituary", 0.0), Counting("expire", 0.05)
    with running(make_lane(), greedy, modest):
        wait_until(lambda: len(modest.calls) >= 5, SECONDS, "the modest one's turns")
    assert len(greedy.calls) > len(modest.calls)


def test_a_message_wakes_it(make_lane: MakeLane) -> None:
    service = Counting("obituary", float("inf"))
    with running(make_lane(), service) as runner:
        wait_until(lambda: service.calls, SECONDS, "the first call")
        service._due_at = 0.0
        runner.wake()
        wait_until(lambda: len(service.calls) >= 2, SECONDS, "the second call")


def test_a_lane_retires_its_connection_and_opens_another(
    dsn: str, make_lane: MakeLane, seen: list[Event]
) -> None:
    lane = make_lane()
    first = lane.call(lambda conn: conn.info.backend_pid)
    assert lane.call(lambda conn: conn.info.backend_pid) == first
    lane._retires_at = boottime()
    assert lane.call(lambda conn: conn.info.backend_pid) != first
    assert [dict(event.fields) for event in seen] == [{"lane": "test"}] * 2
