"""The heartbeat thread of a slot: it watches and keeps the one job its partner runs.

Floor 3. Paired for life with a worker thread and reused, since starting a thread beside busy ones
takes longer than most jobs. It stops last: a job that ignores its cancellation keeps its lease
until its thread or its process has ended.
"""

from __future__ import annotations

import threading

from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.errors import describe
from reliable_worker.jobs.events import emit
from reliable_worker.worker.execution import Execution
from reliable_worker.worker.renewal import LeaseBook

# At most so long between two looks; a lease with shorter renewals is looked at more often.
_LOOK_SECONDS = 1.0


class Heartbeat:
    """Beats for at most one execution at a time."""

    def __init__(self, index: int, book: LeaseBook, renew_seconds: float) -> None:
        self._book = book
        self._look_seconds = min(_LOOK_SECONDS, renew_seconds / 4)
        self._wake = threading.Event()
        self._execution: Execution | None = None
        self._closed = False
        self.thread = threading.Thread(target=self._run, name=f"heartbeat-{index}", daemon=True)

    def start(self) -> None:
        """Start the thread; raises RuntimeError when the system allows no more threads."""
        self.thread.start()

    def begin(self, execution: Execution) -> None:
        """Beat for this job from now on. Called before the handler starts."""
        self._execution = execution
        execution.job.lease.cancellation.listen(self._wake.set)
        if execution.timeout_seconds < self._look_seconds:
            self._wake.set()

    def end(self) -> None:
        self._execution = None

    def close(self) -> None:
        self._closed = True
        self._wake.set()

    def _run(self) -> None:
        while not self._closed:
            execution = self._execution
            wait = self._look_seconds
            if execution is not None:
                wait = min(wait, max(0.01, execution.next_look_seconds(boottime())))
            self._wake.wait(wait)
            self._wake.clear()
            try:
                self._beat()
            except Exception as error:  # no memory, say: the next beat may have some
                emit("heartbeat_failed", "error", error=describe(error))

    def _beat(self) -> None:
        execution = self._execution
        if execution is not None:
            execution.watch(boottime())
            execution.interrupt()
        # Without a job of its own too: the finisher may be held up with jobs that have returned.
        self._book.renew_due()
