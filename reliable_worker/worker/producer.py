"""The producer: claims jobs for the process's free slots.

Floor 3, the way's second stage: enqueue → **claim** → run. One claim is under way at most, never
for more jobs than there are free slots (and `prefetch`). It looks only into combinations of queue,
kind and priority that exist, in turns, each from its mark on.
"""

from __future__ import annotations

import json
import threading

import psycopg

from reliable_worker.jobs import failpoints
from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.errors import ReliableWorkerError, describe
from reliable_worker.jobs.events import emit
from reliable_worker.jobs.job import ClaimedJob
from reliable_worker.jobs.lease import Lease
from reliable_worker.jobs.outcome import Release
from reliable_worker.jobs.retry import full_jitter
from reliable_worker.postgres import store
from reliable_worker.postgres.database import Connection, Fault, classify
from reliable_worker.postgres.marks import SchemaMismatch
from reliable_worker.worker.finish import BACKLOG_JOBS, Finished
from reliable_worker.worker.places import Places
from reliable_worker.worker.presence import Presence
from reliable_worker.worker.shared import Shared
from reliable_worker.worker.slots import Slots

# The first pause of an idle process, doubled up to poll_seconds.
_FIRST_POLL_SECONDS = 0.005
# Between looks at what wakes nobody: a backlog that shrinks, trouble that ends.
_LOOK_SECONDS = 0.2
# A claim whose backend is still there is asked about again after this.
_RECOVER_SECONDS = 0.1
# In every claim's owner for jobs claimed beyond the free slots.
_PREFETCHED = "p"


class Producer:
    """One thread that claims; `stop` ends it for good."""

    def __init__(
        self,
        shared: Shared,
        slots: Slots,
        places: Places,
        presence: Presence,
        *,
        suspects: bool,
        once: bool,
    ) -> None:
        self._shared = shared
        self._slots = slots
        self._places = places
        self._presence = presence
        self._suspects = suspects
        self._once = once
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._idle_polls = 0
        self._lost_reply: store.Backend | None = None
        self.worked_at = boottime()  # when a claim last brought a job
        self.failure: SchemaMismatch | None = None  # ends the process
        self.thread = threading.Thread(target=self._run, name="producer", daemon=True)

    def wake(self) -> None:
        """A slot is free, or jobs may be waiting. Thread-safe."""
        self._wake.set()

    def notified(self, payload: str) -> None:
        """A notification named claimable combinations (or said nothing readable)."""
        try:
            named = [store.Combination(*item) for item in json.loads(payload)]
        except (ValueError, TypeError):
            named = []
        self._places.heard(named)
        self._idle_polls = 0
        self._wake.set()

    def stop(self) -> None:
        """Claim no more; a claim under way is given back when it arrives. Never undone."""
        self._stop.set()
        self._wake.set()

    @property
    def stopped(self) -> bool:
        return not self.thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            pause = self._turn()
            if pause > 0:
                self._wake.wait(pause)
            self._wake.clear()

    def _turn(self) -> float:
        """One claim if there is room for it; how long to wait for the next."""
        self._presence.tell()
        finisher = self._shared.finisher
        if finisher.backlog >= BACKLOG_JOBS or (finisher.troubled and finisher.backlog):
            return _LOOK_SECONDS  # after an outage what is held is settled before more is taken
        indexes = self._slots.reserve()
        alone = self._suspects or self._once
        room = 0 if alone else max(0, self._shared.settings.prefetch - self._slots.waiting)
        if not indexes and room <= self._shared.settings.prefetch // 2:
            return _LOOK_SECONDS  # a claim for a few more would cost as much as one for many
        try:
            jobs, due_seconds = self._attempt(indexes, room)
        except Exception as error:
            self._slots.free(indexes)
            return self._failed(error)
        self._dispatch(jobs, indexes)
        if self._once:
            self._stop.set()
            return 0.0
        return self._pause(len(jobs), len(indexes) + room, due_seconds)

    def _attempt(self, indexes: list[int], room: int) -> tuple[list[ClaimedJob], float | None]:
        """Claim; a reply that was lost before is cleared up first."""
        shared, settings = self._shared, self._shared.settings
        started_at = boottime()
        shared.book.claiming(True)
        try:
            with shared.control.use(
                settings.claim_timeout_seconds, "claim_timeout_seconds"
            ) as conn:
                if self._lost_reply is not None and not self._recover(conn):
                    return [], _RECOVER_SECONDS
                self._places.refresh(conn, idle=self._idle_polls > 0)
                self._places.look_below(conn)
                asked = self._places.turn()
                if not asked:
                    return [], None
                claim = self._claim(conn, asked, indexes, room)
            failpoints.reach("after_claim_commit")
            shared.book.add(claim.jobs)
        finally:
            shared.book.claiming(False)
        self._places.claimed(asked, claim)
        if claim.jobs:
            emit(
                "claimed", "debug", count=len(claim.jobs), duration_seconds=boottime() - started_at
            )
        return claim.jobs, claim.due_seconds

    def _claim(
        self,
        conn: Connection,
        asked: list[tuple[store.Combination, int]],
        indexes: list[int],
        room: int,
    ) -> store.Claim:
        shared, settings = self._shared, self._shared.settings
        names = [*(str(index) for index in indexes), *[_PREFETCHED] * room]
        backend = shared.control.backend
        try:
            return store.claim(
                conn,
                asked,
                [f"{shared.boot}.{name}" for name in names],
                lease_seconds=settings.lease_seconds,
                margin_seconds=settings.margin_seconds,
                suspects=self._suspects,
            )
        except psycopg.Error as error:
            if classify(error) is Fault.INFRASTRUCTURE:
                self._lost_reply = backend  # it may have been committed all the same
            raise

    def _recover(self, conn: Connection) -> bool:
        """Give back what a claim took whose reply was lost, once its backend is gone."""
        assert self._lost_reply is not None
        if store.terminate(conn, self._lost_reply):
            return False
        shared = self._shared
        strays = [
            Lease(job_id, owner, fence, until=0.0)
            for job_id, owner, fence in store.held(conn, shared.boot)
            if not shared.book.holds(job_id, fence)
        ]
        if strays:
            store.release(conn, strays)
            emit("claim_recovered", "warning", count=len(strays))
        self._lost_reply = None
        return True

    def _dispatch(self, jobs: list[ClaimedJob], indexes: list[int]) -> None:
        """Give each job to the slot its owner names; after a stop give it back instead."""
        if jobs:
            self.worked_at = boottime()
        if self._stop.is_set():
            self._slots.free(indexes)
            self.give_back(jobs)
            return
        unused = set(indexes)
        for job in jobs:
            name = job.lease.owner.rpartition(".")[2]
            if name == _PREFETCHED:
                self._slots.prefetch(job)
            else:
                unused.discard(int(name))
                self._slots.give(int(name), job)
        self._slots.free(sorted(unused))

    def give_back(self, jobs: list[ClaimedJob]) -> None:
        """Release jobs that never started, each in its place."""
        for job in jobs:
            self._shared.finisher.submit(Finished(job, Release("unstarted")))

    def _failed(self, error: Exception) -> float:
        kind = classify(error)
        emit("claim_failed", "warning", error=describe(error), reason=kind.value)
        if not isinstance(error, psycopg.Error | ReliableWorkerError | OSError):
            # A defect of ours, perhaps after the claim: whatever it took is given back.
            self._lost_reply = self._shared.control.backend
        if isinstance(error, SchemaMismatch) and not self._shared.board.ready:
            # Never worked: end with the line that says why. A process that did work goes on
            # asking: whoever migrated past it will replace it, or migrate back.
            self.failure = error
            self._stop.set()
        pause = self._shared.settings.claim_pause_seconds
        return pause + full_jitter(pause / 2)

    def _pause(self, got: int, asked: int, due_seconds: float | None) -> float:
        """Until the next claim: none while claims come back full, then 5, 10, 20 … ms."""
        if got:
            self._idle_polls = 0
            return 0.0 if got >= asked else _FIRST_POLL_SECONDS
        longest = self._shared.settings.poll_seconds
        delay = min(_FIRST_POLL_SECONDS * 2.0 ** min(self._idle_polls, 20), longest)
        self._idle_polls += 1
        wait = delay / 2 + full_jitter(delay / 2)
        return wait if due_seconds is None else min(wait, max(0.0, due_seconds))
