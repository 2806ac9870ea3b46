"""The finisher: writes what became of jobs whose handlers have ended.

Floor 3, the last stage of the way: **complete | retry | dead | snooze | release**. One thread per
process takes what the slots hand in. Completions that wait together share one transaction, each
row fenced alone; everything else is one fenced statement. Nothing is dropped because the database
is away: it is tried again until it is acknowledged or the process ends.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psycopg
from psycopg_pool import PoolTimeout

from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.errors import ReliableWorkerError, describe
from reliable_worker.jobs.events import emit
from reliable_worker.jobs.job import ClaimedJob
from reliable_worker.jobs.lease import LeaseState
from reliable_worker.jobs.outcome import Complete, Outcome
from reliable_worker.jobs.retry import full_jitter
from reliable_worker.postgres.database import Fault, classify
from reliable_worker.worker import effects, group, settle
from reliable_worker.worker.effects import Effect
from reliable_worker.worker.shared import Shared

# Jobs per group transaction: at 64 the commit's cost is spread thin, and a group of single-row
# effects holds its row locks for a few milliseconds only.
GROUP_JOBS = 64
# A process claims no more while two groups wait to be acknowledged.
BACKLOG_JOBS = 2 * GROUP_JOBS
# Between looks for leases to renew while there is nothing to write.
_LOOK_SECONDS = 0.2
# After a fault of the infrastructure; jittered.
_PAUSE_SECONDS = 0.5
# So often a write is tried that the server refuses, half a second apart at most: long enough for an
# operator's mistake that is mended at once.
REFUSALS = 20
# A kind whose effects met a deadlock or a lock timeout keeps the others of its group waiting:
# it finishes by itself for a while.
ALONE_SECONDS = 10.0


@dataclass(slots=True)
class Finished:
    """A job whose handler has ended, and what is to be written."""

    job: ClaimedJob
    outcome: Outcome
    effects: Sequence[Effect] = ()
    duration_seconds: float = 0.0
    interruptions: int = 0  # infrastructure faults after its transaction had begun
    uncertain: bool = False  # an earlier try may have been written
    refusals: int = 0  # how often the server refused to write it
    alone: bool = False  # not in a group: it failed there, or its row was locked
    facts: dict[str, object] = field(init=False)
    handed_at: float = field(default_factory=boottime)

    def __post_init__(self) -> None:
        self.facts = {**self.job.facts(), "duration_seconds": self.duration_seconds}

    def committed(self, now: float) -> dict[str, object]:
        """The facts of a completion acknowledged at `now` (boottime)."""
        margin = self.job.lease.until - now
        return {**self.facts, "finish_seconds": now - self.handed_at, "margin_seconds": margin}


def _nobody() -> None:
    """Before the producer is there."""


class Finisher:
    """One thread, one queue."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self._items: deque[Finished] = deque()
        self._writing = 0
        self._wake = threading.Event()
        self._closed = False
        self._alone: dict[str, float] = {}
        self.on_room: Callable[[], None] = _nobody  # told when the backlog has shrunk
        self.troubled = False  # the last write met an infrastructure fault
        self.thread = threading.Thread(target=self._run, name="finisher", daemon=True)

    @property
    def backlog(self) -> int:
        """Jobs handed in and not yet acknowledged."""
        return len(self._items) + self._writing

    def submit(self, item: Finished) -> None:
        """Hand in; the slot is free after this."""
        self._items.append(item)
        self._wake.set()

    def close(self) -> None:
        """End the thread after what it is doing now."""
        self._closed = True
        self._wake.set()

    def alone(self, kind: str) -> None:
        """Finish this kind's jobs one by one for a while."""
        self._alone[kind] = boottime() + ALONE_SECONDS

    def _run(self) -> None:
        while not self._closed:
            if not self._items:
                self._wake.wait(_LOOK_SECONDS)
                self._wake.clear()
            batch = self._take()
            if batch:
                try:
                    self._write(batch)
                finally:
                    self._writing = 0
                    self.on_room()
            self.shared.book.renew_due()

    def _take(self) -> list[Finished]:
        """The next group of completions, or the next single write."""
        batch: list[Finished] = []
        while self._items and len(batch) < GROUP_JOBS:
            item = self._items[0]
            if not self._groups(item):
                if not batch:
                    self._writing += 1
                    batch.append(self._items.popleft())
                break
            self._writing += 1  # first: `backlog` must never miss one
            batch.append(self._items.popleft())
        return batch

    def _groups(self, item: Finished) -> bool:
        if not isinstance(item.outcome, Complete) or item.alone:
            return False
        if not effects.mingle(item.effects):
            return False
        until = self._alone.get(item.job.kind)
        if until is not None and boottime() >= until:
            del self._alone[item.job.kind]
            until = None
        return until is None

    def _refused(self, item: Finished) -> bool:
        """The server refuses this write (a privilege, a trigger of the user's): given up at last.

        Its lease then runs out and the job is tried again, charged: it cannot be finished as it is.
        """
        item.alone = True  # whether it is this one's own trouble shows only alone
        item.refusals += 1
        if item.refusals < REFUSALS:
            return False
        self.shared.book.drop(item.job.lease)
        emit("job_abandoned", "error", reason="refused", **item.facts)
        return True

    def _write(self, batch: list[Finished]) -> None:
        """Write; what the infrastructure kept from being written goes back to the queue."""
        try:
            if len(batch) == 1:
                again = settle.settle(self, batch[0])
            else:
                again = group.complete(self, batch)
            self.troubled = False
        except (psycopg.Error, PoolTimeout, ReliableWorkerError, OSError) as error:
            batch = [item for item in batch if item.job.lease.state is not LeaseState.ENDED]
            kind = classify(error)
            # A row that is locked or refused is one job's trouble: the process goes on.
            self.troubled = kind is Fault.INFRASTRUCTURE
            emit("failure_update_failed", "warning", error=describe(error), count=len(batch))
            if kind is Fault.INFRASTRUCTURE:
                self._items.extendleft(reversed(batch))
            elif kind is Fault.TRANSIENT:
                self._items.extend(batch)
            else:
                self._items.extend(item for item in batch if not self._refused(item))
            self._wake.clear()
            self._wake.wait(full_jitter(_PAUSE_SECONDS))
            return
        except Exception as error:
            # A defect of ours must not end the thread: each job is tried by itself, later.
            emit("failure_update_failed", "error", error=describe(error), count=len(batch))
            again = batch
            for item in batch:
                item.uncertain = True  # it may have been written all the same
            self._wake.wait(_PAUSE_SECONDS)
        for item in again:
            item.alone = True
            self._items.append(item)
