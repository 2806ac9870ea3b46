"""Expire: take jobs from holders whose lease has run out.

On a job's way: running → ready or dead, where nobody saw why the holder fell silent. Every
`reap_seconds`; holds back after an outage. Keeps the marks that all scans of running rows use.
Floor 4. Imports postgres and jobs.
"""

from __future__ import annotations

import math
from functools import partial

import psycopg

from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.events import emit
from reliable_worker.maintenance.holdback import Holdback
from reliable_worker.maintenance.lane import Lane
from reliable_worker.maintenance.marks import Marks
from reliable_worker.maintenance.pace import Pace
from reliable_worker.postgres import upkeep
from reliable_worker.settings import Settings

# Rows of one statement: some 5 ms of locks.
BATCH_ROWS = 500
# Batches of one tick, so that a mass expiry keeps no obituary waiting.
_BATCHES = 20
# The full scan's share of one tick, for the same reason.
_FULL_SCAN_SECONDS = 0.25


class Expire:
    """The service `expire`."""

    name = "expire"

    def __init__(self, settings: Settings, marks: Marks, holdback: Holdback) -> None:
        self._lease = settings.lease_seconds
        self._marks = marks
        self._holdback = holdback
        self._pace = Pace(settings.reap_seconds)

    def due_at(self) -> float:
        return self._pace.due_at

    def run_once(self, lane: Lane) -> int:
        """One tick; how many jobs were taken."""
        self._pace.began(boottime())
        runs = self._look(lane)
        held = self._holdback.holding(boottime())
        taken = self._take(lane) if runs and not held else 0
        if self._marks.full.due(boottime()):
            self._look_below(lane)
        return taken

    def _take(self, lane: Lane) -> int:
        taken = 0
        for _ in range(_BATCHES):
            batch = lane.call(
                partial(
                    upkeep.expire,
                    mark=self._marks.mark,
                    server_age_seconds=self._lease,
                    limit=BATCH_ROWS,
                )
            )
            taken += len(batch)
            self._report(batch)
            if len(batch) < BATCH_ROWS:
                break
        else:
            self._pace.hurry(boottime())
        return taken

    def _look(self, lane: Lane) -> bool:
        """Move the mark to the oldest claim still running; whether anything runs at all."""
        if self._marks.mark == math.inf:  # the first tick: learn what time it is there
            self._marks.ticked(lane.call(upkeep.clock), None)
        mark = self._marks.mark
        seen = lane.call(partial(upkeep.oldest_running, since=mark, before=math.inf))
        self._marks.ticked(seen.now, seen.claimed_at)
        if seen.undated:
            lane.call(upkeep.date_running)
        return seen.undated or seen.claimed_at is not None

    def _look_below(self, lane: Lane) -> None:
        """Look for running rows below the mark, as far as this tick's share goes."""
        full, ends_at = self._marks.full, boottime() + _FULL_SCAN_SECONDS
        while full.due(boottime()) and boottime() < ends_at:
            since, before = full.slice(self._marks.mark)
            began = boottime()
            try:
                seen = lane.call(partial(upkeep.oldest_running, since=since, before=before))
            except psycopg.errors.QueryCanceled:
                full.cut(boottime() - began)
                raise
            if seen.claimed_at is not None:
                self._marks.lower(seen.claimed_at)
                self._pace.hurry(boottime())
            full.looked(boottime() - began, boottime())

    def _report(self, batch: list[upkeep.Taken]) -> None:
        if batch:
            emit("jobs_expired", "warning", count=len(batch))
        for job in batch:
            if job.dead:
                emit(
                    "job_failed",
                    "warning",
                    job_id=job.job_id,
                    attempt=job.attempt,
                    owner=job.owner,
                    kind=job.kind,
                    queue=job.queue,
                    error="lease expired after final attempt",
                    reason="expired",
                    outcome="dead",
                )
