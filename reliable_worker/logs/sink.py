"""Between those who log and the outlet: a bounded queue. Who logs never waits.

Floor 0; imports `outlet` and `jobs.events`. In a child a thread of its own empties the queue; the
parent has no threads, there its loop does (`pump`). When the reader of stdout stops, lines pile up
to the bound, then they are dropped and counted; jobs, leases and signals do not notice.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from reliable_worker.jobs.events import emit
from reliable_worker.logs.outlet import Outlet

# Lines kept while nobody reads: seconds of a busy worker, about 1 MB, 16 MB if all were as long as
# a line may be.
LINES = 4096

# How often drops are reported while they last, and how long the thread waits at a time.
REPORT_SECONDS = 1.0
WAIT_SECONDS = 0.2


class Sink:
    """One process's queue of lines. Fresh after every fork: no lock is inherited in use."""

    def __init__(self, outlet: Outlet, notice: Callable[[int], bytes]) -> None:
        """`notice(count)` makes the line that says how many lines were dropped before it."""
        self._outlet = outlet
        self._notice = notice
        # In C, and safe to be entered again by a finaliser that logs in the middle of a put.
        self._queue: SimpleQueue[bytes] = SimpleQueue()
        self._unwritten = b""
        self._thread: threading.Thread | None = None
        self._closing = False
        self._pumping = threading.Lock()
        # Re-entrant for the same finaliser's sake; held for one addition.
        self._counting = threading.RLock()
        self._dropped = 0
        self._untold = 0
        self._reported_at = time.monotonic()

    @property
    def pending(self) -> bool:
        """Lines wait for room."""
        return bool(self._unwritten) or not self._queue.empty()

    def put(self, line: bytes) -> None:
        """Take one line with its end. Never waits: without room it is counted and gone."""
        if self._queue.qsize() >= LINES:
            self._drop()
            return
        self._queue.put(line)
        if self._thread is None:
            self.pump()

    def start(self) -> None:
        """Write from a thread from now on (children). Without one, those who log write."""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            # No thread to be had (a limit on tasks): non-blocking writes by the loggers will do.
            self._thread = None

    def pump(self) -> bool:
        """Write what goes without waiting; True: nothing is left."""
        if self._thread not in (None, threading.current_thread()):
            return False
        # Somebody else writes already, or this is a finaliser inside our own write.
        if not self._pumping.acquire(blocking=False):
            return False
        try:
            return self._write_all()
        finally:
            self._pumping.release()
            self._report()

    def close(self, seconds: float) -> None:
        """Write what is left, for at most so long; later lines are written by those who log."""
        deadline = time.monotonic() + seconds
        thread, self._closing = self._thread, True
        if thread is not None:
            self._queue.put(b"")  # wakes it
            thread.join(seconds)
            if not thread.is_alive():
                self._thread = None
        while not self.pump() and (left := deadline - time.monotonic()) > 0:
            self._outlet.wait(min(left, WAIT_SECONDS))

    def _run(self) -> None:
        while True:
            if not self.pump():
                self._outlet.wait(WAIT_SECONDS)
            elif self._closing:
                return
            else:
                with contextlib.suppress(Empty):
                    self._unwritten = self._queue.get(timeout=REPORT_SECONDS)

    def _write_all(self) -> bool:
        """Write until the queue is empty (True) or there is no room."""
        written = False
        while True:
            if not self._unwritten:
                try:
                    self._unwritten = self._queue.get_nowait()
                except Empty:
                    if not (written and self._untold):
                        return True
                    self._unwritten = self._take_notice()
                    written = False
                continue
            try:
                taken = self._outlet.write(self._unwritten)
                written = taken > 0
            except OSError:
                # No reader any more, or no space: this line is lost, the next may do better.
                self._drop()
                taken = len(self._unwritten)
            if not taken:
                return False
            # Only a terminal or a foreign socket takes part of a line; the rest goes first.
            self._unwritten = self._unwritten[taken:]

    def _take_notice(self) -> bytes:
        with self._counting:
            count, self._untold = self._untold, 0
        return self._notice(count)

    def _drop(self) -> None:
        with self._counting:
            self._dropped += 1
            self._untold += 1

    def _report(self) -> None:
        """Tell the meters, at most once a second; the line comes when there is room for lines."""
        now = time.monotonic()
        if not self._dropped or now - self._reported_at < REPORT_SECONDS:
            return
        with self._counting:
            self._reported_at = now
            count, self._dropped = self._dropped, 0
        emit("logs_dropped", "warning", count=count)
