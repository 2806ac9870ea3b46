"""Threads that may wait for the database, and the short queue before them.

Floor 6; imports http, jobs. The loop hands a whole request in with its ticket; whoever comes when
too many wait, or waits too long itself, is turned away before anything has begun. The loop keeps
every deadline, so a thread that is stuck costs a thread and not a client.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from reliable_worker.http.message import Deferred, Response, Ticket
from reliable_worker.jobs.deadline import Deadline
from reliable_worker.jobs.events import emit

# A thread answers by itself within the request's budget; the loop only where it does not.
GRACE_SECONDS = 0.25

Work = Callable[[Deadline], Response]
# Makes the answer for a request turned away ("too_many_waiting") or overdue ("outcome_unknown").
Refusal = Callable[[str], Response]


class Workers:
    """`size` threads; at most `most_waiting` requests wait for one, each at most `wait_seconds`."""

    def __init__(
        self, size: int, most_waiting: int, wait_seconds: float, request_seconds: float
    ) -> None:
        self._queue: SimpleQueue[_Item] = SimpleQueue()
        self._size = size
        self._most_waiting = most_waiting
        self._wait_seconds = wait_seconds
        self._request_seconds = request_seconds

    def start(self) -> None:
        """Begin. The threads are daemons: a process that is cut waits for none of them."""
        for number in range(self._size):
            threading.Thread(target=self._run, name=f"worker-{number}", daemon=True).start()

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    def defer(self, work: Work, refuse: Refusal) -> Response | Deferred:
        """`work` for a thread, or the refusal at once where the queue is full."""
        if self._queue.qsize() > self._most_waiting:
            return refuse("too_many_waiting")
        item = _Item(work, refuse, Deadline(self._request_seconds, "LEDGER_REQUEST_SECONDS"))

        def start(ticket: Ticket) -> None:
            item.ticket = ticket
            self._queue.put(item)

        return Deferred(start, self._wait_seconds, item.late)

    def _run(self) -> None:
        while True:
            item = self._queue.get(timeout=None)
            if item.ticket is None or item.ticket.over or not item.claim():
                continue
            try:
                response = item.work(item.deadline)
            except Exception as error:
                emit("request_failed", "error", error=error)
                response = item.refuse("internal_error")
            item.ticket.answer(response)


class _Item:
    """One request on its way to a thread."""

    def __init__(self, work: Work, refuse: Refusal, deadline: Deadline) -> None:
        self.work = work
        self.refuse = refuse
        self.deadline = deadline
        self.ticket: Ticket | None = None
        self._claim = threading.Lock()

    def claim(self) -> bool:
        """True for the first who asks: a thread that begins, or the loop that gives it up."""
        return self._claim.acquire(blocking=False)

    def late(self) -> Response | float:
        """What the loop does when the time to wait is over: turn away, or give it its time."""
        if self.claim():
            return self.refuse("too_many_waiting")
        left = self.deadline.remaining()
        return left + GRACE_SECONDS if left else self.refuse("outcome_unknown")
