"""The leases this process holds, and keeping them.

Floor 3. Every lease stands in the book from its claim until the database has acknowledged what
became of the job. Heartbeats (and the finisher, for jobs whose handler has returned) ask for a
renewal; whoever comes first renews everything due in one statement, the others go on watching.
One error is no lost lease: renewals are tried again until the local deadline.
"""

from __future__ import annotations

import threading

from reliable_worker.jobs.board import ChildBoard
from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.errors import describe
from reliable_worker.jobs.events import emit
from reliable_worker.jobs.job import ClaimedJob
from reliable_worker.jobs.lease import Lease
from reliable_worker.jobs.retry import full_jitter
from reliable_worker.postgres import store
from reliable_worker.settings import Settings
from reliable_worker.worker.control import Control

# A row locked by somebody just now is asked for again after this long: a finishing transaction
# takes a few milliseconds.
_LOCKED_SECONDS = 0.1
# After an error: long enough not to hammer a server that refuses, short beside any margin.
_ERROR_SECONDS = 0.5
# The shortest budget worth sending a statement with.
_LEAST_SECONDS = 0.1


class LeaseBook:
    """All leases of the process, by job id."""

    def __init__(self, settings: Settings, control: Control, board: ChildBoard) -> None:
        self._settings = settings
        self._control = control
        self._board = board
        self._lock = threading.Lock()
        self._jobs: dict[int, ClaimedJob] = {}
        self._claiming = 0
        self._renewing = threading.Lock()
        self._not_before = 0.0

    def __len__(self) -> int:
        return len(self._jobs)

    def claiming(self, under_way: bool) -> None:
        """Count a claim under way as a lease: its reply may still be lost."""
        with self._lock:
            self._claiming = int(under_way)
            self._show()

    def add(self, jobs: list[ClaimedJob]) -> None:
        with self._lock:
            for job in jobs:
                self._jobs[job.id] = job
            self._show()

    def drop(self, lease: Lease) -> None:
        """The lease needs no more renewal: acknowledged, lost, or given up."""
        self.drop_all([lease])

    def drop_all(self, leases: list[Lease]) -> None:
        """The same for many at once."""
        for lease in leases:
            lease.end()
        with self._lock:
            for lease in leases:
                held = self._jobs.get(lease.id)
                if held is not None and held.lease is lease:
                    del self._jobs[lease.id]
            self._show()

    def holds(self, job_id: int, fence: int) -> bool:
        held = self._jobs.get(job_id)
        return held is not None and held.lease.fence == fence

    def renew_due(self) -> None:
        """Renew every lease that is due, unless another thread is at it. Never raises."""
        if boottime() < self._not_before or not self._renewing.acquire(blocking=False):
            return
        try:
            due = self._due(boottime())
            if due:
                self._try(due)
        finally:
            self._renewing.release()

    def renew_now(self, lease: Lease, need_seconds: float) -> bool:
        """Renew one lease before it is finished with; True when it has enough time left."""
        if not self._renewing.acquire(timeout=self._settings.query_timeout_seconds):
            return lease.remaining() >= need_seconds
        try:
            if lease.remaining() < need_seconds:
                self._try([lease])
        finally:
            self._renewing.release()
        return lease.remaining() >= need_seconds

    def _due(self, now: float) -> list[Lease]:
        """The renewable leases, if one of them is due: renewing all costs one statement too."""
        with self._lock:
            leases = [job.lease for job in self._jobs.values() if job.lease.renewable()]
        half = self._settings.renew_seconds / 2
        if not any(now - lease.renewed_at >= 2 * half for lease in leases):
            return []
        return [lease for lease in leases if now - lease.renewed_at >= half]

    def _try(self, leases: list[Lease]) -> None:
        sent_at = boottime()
        # those past their time are asked for too, and must not cut the others' time
        ahead = [lease.until for lease in leases if lease.until > sent_at]
        first = min(ahead, default=sent_at + self._settings.query_timeout_seconds)
        seconds = min(self._settings.query_timeout_seconds, first - sent_at)
        try:
            self._renew(leases, sent_at, max(_LEAST_SECONDS, seconds))
        except Exception as error:  # no memory, say: the thread that asked must go on
            self._not_before = boottime() + full_jitter(_ERROR_SECONDS)
            emit("renew_failed", "warning", error=describe(error), count=len(leases))

    def _renew(self, leases: list[Lease], sent_at: float, seconds: float) -> None:
        settings = self._settings
        with self._control.use(seconds, "query_timeout_seconds") as conn:
            renewed = store.renew(conn, leases, settings.lease_seconds)
            missing = [lease for lease in leases if lease.id not in renewed]
            standing = store.probe(conn, missing) if missing else set()
        until = sent_at + settings.lease_seconds - settings.margin_seconds
        missed = 0
        for lease in leases:
            if lease.id in renewed:
                missed += max(0, int((sent_at - lease.renewed_at) / settings.renew_seconds) - 1)
                lease.renewed(sent_at, until)
            elif lease.id in standing:
                self._not_before = boottime() + _LOCKED_SECONDS
            elif lease.renewable():
                self._lose(lease)
        if missed:
            emit("heartbeats_missed", "warning", count=missed)
        self.show()

    def _lose(self, lease: Lease) -> None:
        job = self._jobs.get(lease.id)
        if lease.lose("the job's row names another owner or fence") and job is not None:
            emit("lease_lost", "warning", reason="taken", **job.facts())

    def show(self) -> None:
        """Tell the parent until when the leases last; the main loop does so at every turn."""
        with self._lock:
            until = min((job.lease.until for job in self._jobs.values()), default=0.0)
            self._board.set_deadline(until)

    def _show(self) -> None:
        """Tell the parent how much is held. Called under the lock, at every job.

        Of the deadlines only what cannot wait: that there is one, that there is none. Between two
        turns of the loop it may name a lease that has ended, which is too early and never too late.
        """
        self._board.set_held(len(self._jobs) + self._claiming)
        if not self._jobs:
            self._board.set_deadline(0.0)
        elif not self._board.deadline:
            self._board.set_deadline(next(iter(self._jobs.values())).lease.until)
