"""What the tests of maintenance share: a connection as the process has it, events as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from reliable_worker.jobs import events
from reliable_worker.maintenance.holdback import Holdback
from reliable_worker.maintenance.lane import Lane
from reliable_worker.postgres.database import Connection, connect
from reliable_worker.settings import Settings
from tests.fixtures.configuration import make_settings


@pytest.fixture
def brisk(dsn: str) -> Settings:
    """A lease of 3 s: nothing expires on the tests' server before it is that old."""
    return make_settings(dsn, lease_seconds=3)


@pytest.fixture
def upkeep_conn(dsn: str) -> Iterator[Connection]:
    """A connection of the kind every statement of the package runs on."""
    with connect(make_settings(dsn), lane="test") as connection:
        yield connection


@pytest.fixture
def make_lane(dsn: str) -> Iterator[Callable[..., Lane]]:
    """A factory of lanes, closed afterwards."""
    lanes: list[Lane] = []

    def make(
        settings: Settings | None = None, holdback: Holdback | None = None, name: str = "test"
    ) -> Lane:
        settings = settings or make_settings(dsn)
        lane = Lane(
            name,
            settings,
            "f" * 32,
            holdback=holdback or Holdback(settings.lease_seconds),
            contact=lambda at: None,
        )
        lanes.append(lane)
        return lane

    yield make
    for lane in lanes:
        lane.close()


@pytest.fixture
def seen() -> Iterator[list[events.Event]]:
    """Every event emitted during the test."""
    happened: list[events.Event] = []
    events.clear()
    events.subscribe(happened.append)
    yield happened
    events.clear()
