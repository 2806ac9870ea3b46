"""Pruner: delete jobs that ended long enough ago, and what was recorded about them.

On a job's way: its end. A key protects as long as its row is kept, so how long that is is a setting
per state (`keep_succeeded_days`, `keep_cancelled_days`, `keep_dead_days`; 0 keeps for ever). Walks
the primary key in slices, each a transaction of its own that locks only rows that are over and
skips locked ones: no claim ever waits for it. Floor 4. Imports postgres and jobs.
"""

from __future__ import annotations

from functools import partial

from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.events import emit
from reliable_worker.maintenance.lane import Lane
from reliable_worker.maintenance.pace import Pace
from reliable_worker.postgres import upkeep
from reliable_worker.settings import Settings

# Rows of one statement: deleting all of them takes some 20 ms.
SLICE_ROWS = 500
# One tick's share of the thread that also wakes workers and counts.
_TICK_SECONDS = 0.2
# While there is something to delete it works a quarter of the time: some 5,000 rows a second.
_REST_PER_COST = 3.0
# The history is bounded also where every job fails at once.
MOST_ATTEMPTS = 1_000_000
# A worker process that has been silent so long is told of no more.
FORGET_SECONDS = 86_400.0
_DAY_SECONDS = 86_400.0


class Pruner:
    """The service `prune`."""

    name = "prune"

    def __init__(self, settings: Settings) -> None:
        self._pace = Pace(settings.prune_seconds)
        self._keep = (
            _seconds(settings.keep_succeeded_days),
            _seconds(settings.keep_cancelled_days),
            _seconds(settings.keep_dead_days),
        )
        self._keep_attempts = _seconds(settings.keep_attempts_days)
        self._keep_actions = _seconds(settings.keep_actions_days)
        self._after = 0

    def due_at(self) -> float:
        return self._pace.due_at

    def run_once(self, lane: Lane) -> int:
        """Some slices; how many jobs were deleted. The next tick goes on where this one ended."""
        began = boottime()
        self._pace.began(began)
        pruned, whole = self._prune(lane, began + _TICK_SECONDS)
        attempts = self._prune_attempts(lane) if whole else 0
        ended = boottime()
        if whole:
            self._pace.cost(ended - began, ended)
        else:
            self._pace.hurry(ended + _REST_PER_COST * (ended - began))
        count = pruned.succeeded + pruned.cancelled + pruned.dead
        if count or attempts:
            emit(
                "jobs_pruned",
                count=count,
                succeeded=pruned.succeeded,
                cancelled=pruned.cancelled,
                dead=pruned.dead,
                attempts=attempts,
            )
        return count

    def _prune(self, lane: Lane, ends_at: float) -> tuple[upkeep.Pruned, bool]:
        """What was deleted, and whether the walk came to its end."""
        total = upkeep.Pruned()
        while boottime() < ends_at:
            done = lane.call(
                partial(upkeep.prune, after=self._after, rows=SLICE_ROWS, keep=self._keep)
            )
            total.succeeded += done.succeeded
            total.cancelled += done.cancelled
            total.dead += done.dead
            if done.last is None or done.young or done.looked < SLICE_ROWS:
                self._after = 0
                return total, True
            self._after = done.last
        return total, False

    def _prune_attempts(self, lane: Lane) -> int:
        ends_at, deleted = boottime() + _TICK_SECONDS, 0
        keep = partial(
            upkeep.prune_attempts, keep=self._keep_attempts, most=MOST_ATTEMPTS, rows=SLICE_ROWS
        )
        while boottime() < ends_at:
            batch = lane.call(keep)
            deleted += batch
            if batch < SLICE_ROWS:
                break
        lane.call(
            partial(
                upkeep.prune_records,
                keep=self._keep_actions,
                rows=SLICE_ROWS,
                silent_seconds=FORGET_SECONDS,
            )
        )
        return deleted


def _seconds(days: float) -> float | None:
    """A time to keep; None for ever."""
    return days * _DAY_SECONDS or None
