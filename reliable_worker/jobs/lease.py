"""The right to run one job: who holds it, until when, and whether it still may be used.

Floor 0, pure but for the clock. A lease is a small locked state machine

    RUNNING → FINISHING → ENDED        (FINISHING → RUNNING after a proven rollback)

FINISHING pauses renewals: the finishing transaction holds the row's lock, which is then the
lease, and a renewal would only wait for it. The local deadline is counted from when the last
successful claim or renewal was *sent*: the database cannot have started the lease earlier.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum

from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.errors import Cancelled, Draining, JobTimeout, LeaseLost


class LeaseState(Enum):
    """Where a lease stands in its life; it only moves on, FINISHING back to RUNNING excepted."""

    RUNNING = "running"
    FINISHING = "finishing"
    ENDED = "ended"


class Cancellation:
    """Why a handler should stop, if it should. Only ever set; a lost lease outranks the rest."""

    def __init__(self) -> None:
        self._set = threading.Event()
        self._lock = threading.Lock()
        self._reason: Cancelled | None = None
        self._listeners: list[Callable[[], None]] = []
        self.at: float | None = None  # boottime of the first request

    @property
    def reason(self) -> Cancelled | None:
        return self._reason

    def request(self, reason: Cancelled) -> bool:
        """Ask the handler to stop; False when it was asked already for as strong a reason."""
        with self._lock:
            held = self._reason
            if held is not None and (
                isinstance(held, LeaseLost) or not isinstance(reason, LeaseLost)
            ):
                return False
            self._reason = reason
            if self.at is None:
                self.at = boottime()
            listeners = list(self._listeners)
        self._set.set()
        for listener in listeners:
            listener()
        return True

    def check(self) -> None:
        """Raise the reason: `LeaseLost`, `JobTimeout` or `Draining`."""
        reason = self._reason
        if reason is not None:
            raise type(reason)(*reason.args)

    def wait(self, seconds: float) -> bool:
        """Wait at most so long for a request; True when there is one."""
        return self._set.wait(seconds)

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` at a request (at once when there was one): to cancel a running query."""
        with self._lock:
            self._listeners.append(listener)
            late = self._reason is not None
        if late:
            listener()

    def unlisten(self, listener: Callable[[], None]) -> None:
        with self._lock:
            self._listeners.remove(listener)


class Lease:
    """One claim of one job: (id, owner, fence) and its local deadline."""

    def __init__(self, job_id: int, owner: str, fence: int, *, until: float) -> None:
        self.id = job_id
        self.owner = owner
        self.fence = fence
        self.cancellation = Cancellation()
        self._lock = threading.Lock()
        self._state = LeaseState.RUNNING
        self._until = until
        self._sent_at = boottime()
        self._lost = False
        self._overdue = False

    @property
    def state(self) -> LeaseState:
        return self._state

    @property
    def until(self) -> float:
        """The local deadline (boottime), the margin already taken off."""
        return self._until

    @property
    def renewed_at(self) -> float:
        """When the last successful claim or renewal was sent (boottime)."""
        return self._sent_at

    @property
    def lost(self) -> bool:
        """The database said that the row is no longer ours."""
        return self._lost

    @property
    def overdue(self) -> bool:
        """The local deadline passed without contact: others may own the job."""
        return self._overdue

    def remaining(self) -> float:
        return self._until - boottime()

    def renewed(self, sent_at: float, until: float) -> None:
        with self._lock:
            if until > self._until:
                self._until = until
                self._sent_at = sent_at

    def renewable(self) -> bool:
        """Whether a renewal makes sense now."""
        return self._state is LeaseState.RUNNING and not (self._lost or self._overdue)

    def lose(self, why: str) -> bool:
        """The row is another's: cancel the handler. True the first time, never once ended."""
        with self._lock:
            if self._lost or self._state is LeaseState.ENDED:
                return False
            self._lost = True
        self.cancellation.request(LeaseLost(why))
        return True

    def expire(self) -> bool:
        """The local deadline passed: cancel. FINISHING is left alone, its row lock holds."""
        with self._lock:
            if self._overdue or self._lost or self._state is not LeaseState.RUNNING:
                return False
            self._overdue = True
        self.cancellation.request(LeaseLost("no contact with the database for a lease"))
        return True

    def begin_finish(self) -> None:
        """RUNNING → FINISHING; raises `LeaseLost` when there is nothing left to finish with."""
        with self._lock:
            if self._lost or self._overdue or self._state is not LeaseState.RUNNING:
                raise LeaseLost("the lease ended before the job could be finished")
            self._state = LeaseState.FINISHING

    def pause(self) -> None:
        """RUNNING → FINISHING for an outcome that any lease, an overdue one too, may be given."""
        with self._lock:
            if self._state is LeaseState.RUNNING:
                self._state = LeaseState.FINISHING

    def resume(self) -> None:
        """FINISHING → RUNNING: nothing was written, or it may be written again."""
        with self._lock:
            if self._state is LeaseState.FINISHING:
                self._state = LeaseState.RUNNING

    def end(self) -> None:
        with self._lock:
            self._state = LeaseState.ENDED

    def timeout(self, seconds: float) -> bool:
        return self.cancellation.request(JobTimeout(f"job_timeout_seconds of {seconds:g} s passed"))

    def drain(self) -> bool:
        return self.cancellation.request(Draining("the worker is shutting down"))
