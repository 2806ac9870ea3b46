"""A job as its handler sees it: the implementation of `jobs.job.Job`.

Floor 3. Effects recorded with `effect` are plain data until the handler has returned;
`transaction` and `finish` hand over to `worker.transaction`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from reliable_worker.jobs.errors import AlreadyFinished
from reliable_worker.jobs.job import ClaimedJob, Params, Transaction
from reliable_worker.postgres.database import Connection
from reliable_worker.worker import transaction as finishing
from reliable_worker.worker.effects import Effect
from reliable_worker.worker.shared import Shared

# A cancel request goes over a connection of its own; the statement it is meant for is bounded by
# its own timeouts anyhow.
_CANCEL_SECONDS = 1.0

# A handler that forked and came back in both processes: the copy must not finish the job too.
# 70 = EX_SOFTWARE of sysexits.h.
FORKED_COPY_EXIT = 70


class JobContext:
    """Implements `Job[Any]`; the fields below the line are the worker's."""

    def __init__(self, shared: Shared, job: ClaimedJob, payload: object, deadline: float) -> None:
        self._job = job
        self.id = job.id
        self.kind = job.kind
        self.queue = job.queue
        self.key = job.key
        self.attempt = job.attempt
        self.fence = job.lease.fence
        self.payload: Any = payload
        self.deadline = deadline

        self.shared = shared
        self.effects: list[Effect] = []
        self.returned = False  # the handler is back: its threads can add nothing
        self.finished = False  # committed by transaction() or finish()
        self.committed: dict[str, object] = {}  # what that took and left of the lease
        self.traces = False  # its statements may have left something in the session
        self.lent_at = 0.0  # when transaction() or finish() got its connection (boottime)
        self.resolving = False  # a COMMIT was sent: what it did is being asked
        self.unknown = False  # a COMMIT whose outcome could not be learned
        self.fault = False  # the finishing transaction met an infrastructure fault
        self.xid: str | None = None  # the finishing transaction that holds the completion
        self.interrupted = False  # a cancel was sent, or is about to be
        self.busy: Connection | None = None  # where a statement of the handler may be running
        self._pid = os.getpid()
        self._block = threading.Lock()  # held while transaction() is open

    @property
    def claimed(self) -> ClaimedJob:
        """The claimed row, for the worker."""
        return self._job

    def check(self) -> None:
        self._job.lease.cancellation.check()

    def sleep(self, seconds: float) -> None:
        self._job.lease.cancellation.wait(max(0.0, seconds))
        self.check()

    def effect(self, query: Any, params: Params | None = None) -> None:
        """Raises `AlreadyFinished`, or TypeError for parameters psycopg could not take."""
        if self.finished or self.returned:
            raise AlreadyFinished("the job is already finished; record effects before that")
        self.effects.append((query, _copied(params)))

    def transaction(self) -> AbstractContextManager[Transaction]:
        return finishing.transaction(self)

    def finish(self, function: Callable[[Transaction], None]) -> None:
        finishing.finish(self, function)

    @contextmanager
    def block(self) -> Iterator[None]:
        """Be the one thread in the one transaction; raises `AlreadyFinished` for any other.

        A copy that the handler forked ends here: it has no lease, and no connection either.
        """
        if os.getpid() != self._pid:
            os._exit(FORKED_COPY_EXIT)
        if self.finished or self.returned:
            raise AlreadyFinished("the job is already finished; one transaction() per job")
        if not self._block.acquire(blocking=False):
            raise AlreadyFinished("the job's one transaction() is open already")
        try:
            yield
        finally:
            self._block.release()

    def close(self, seconds: float) -> None:
        """The handler has returned; a thread it left in its transaction is waited for."""
        self.returned = True
        self._block.acquire(timeout=seconds)  # and kept: there is no other block after this

    def interrupt(self) -> None:
        """Cancel the handler's running statement; in any thread but the handler's, once."""
        self.interrupted = True  # before the look at `busy`: the block's end looks the other way
        conn, self.busy = self.busy, None
        if conn is not None:
            conn.cancel_safe(timeout=_CANCEL_SECONDS)


def _copied(params: object) -> Params | None:
    """The parameters as they are now: handlers use a dict or list again for the next effect."""
    if params is None:
        return None
    if isinstance(params, Mapping):
        return dict(params)
    if isinstance(params, Sequence) and not isinstance(params, str | bytes):
        return tuple(params)
    raise TypeError(f"parameters are a sequence or a mapping, not {type(params).__name__}")
