"""Census: count the queues for the parent's metrics.

On a job's way: beside all of it. Every `census_seconds`, never per scrape, and bounded: each number
is counted up to a limit (10,000, which then reads "at least"), and a census that is cut by its
budget is repeated with half of it. Floor 4. Imports postgres and jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial

import psycopg

from reliable_worker.jobs.deadline import boottime
from reliable_worker.maintenance.lane import Lane
from reliable_worker.maintenance.marks import Marks
from reliable_worker.maintenance.pace import Pace
from reliable_worker.postgres import upkeep
from reliable_worker.settings import Settings

# A gauge that stands at 10,000 has said all that an operator needs of it.
MOST_COUNTED = 10_000
LEAST_COUNTED = 100


class Census:
    """The service `census`."""

    name = "census"

    def __init__(
        self,
        settings: Settings,
        marks: Marks,
        say: Callable[[Mapping[str, object]], None],
    ) -> None:
        self._marks = marks
        self._say = say
        self._pace = Pace(settings.census_seconds)
        self._limit = MOST_COUNTED

    def due_at(self) -> float:
        return self._pace.due_at

    def run_once(self, lane: Lane) -> int:
        """One census; how many queues were counted."""
        began = boottime()
        self._pace.began(began)
        try:
            now = lane.call(upkeep.clock)
            queues = lane.call(partial(upkeep.census, mark=self._marks.floor, limit=self._limit))
            health = lane.call(upkeep.health)
        except psycopg.errors.QueryCanceled:
            self._limit = max(self._limit // 2, LEAST_COUNTED)
            raise
        ended = boottime()
        self._pace.cost(ended - began, ended)
        self._limit = min(self._limit * 2, MOST_COUNTED)
        self._say(
            {
                "say": "census",
                "at": began,
                "unix": now,
                "queues": {queue: asdict(count) for queue, count in queues.items()},
                "database": asdict(health),
            }
        )
        return len(queues)
