"""Reaper: bury ready jobs that have no attempt left.

On a job's way: ready → dead. Only plain SQL leaves such a job behind, and no claim would ever take
it: without this sweep it would wait for ever. Every `sweep_seconds`. Floor 4. Imports postgres and
jobs.
"""

from __future__ import annotations

from functools import partial

from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.events import emit
from reliable_worker.maintenance.lane import Lane
from reliable_worker.maintenance.pace import Pace
from reliable_worker.postgres import upkeep
from reliable_worker.settings import Settings

BATCH_ROWS = 500  # rows of one statement: some 5 ms of locks
_BATCHES = 20  # of one tick, so that a mass burial keeps no obituary waiting


class Reaper:
    """The service `sweep`."""

    name = "sweep"

    def __init__(self, settings: Settings) -> None:
        self._pace = Pace(settings.sweep_seconds)

    def due_at(self) -> float:
        return self._pace.due_at

    def run_once(self, lane: Lane) -> int:
        """One sweep; how many jobs were buried."""
        self._pace.began(boottime())
        buried = 0
        for _ in range(_BATCHES):
            batch = lane.call(partial(upkeep.sweep, limit=BATCH_ROWS))
            buried += batch
            if batch < BATCH_ROWS:
                break
        else:
            self._pace.hurry(boottime())
        if buried:
            emit("jobs_buried", "warning", count=buried)
        return buried
