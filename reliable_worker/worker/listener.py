"""The listener: hears that jobs are waiting, on a connection of its own.

Floor 3. Only ever a hint: notifications are sparse and may be lost, the producer polls anyway.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from reliable_worker.jobs.errors import describe
from reliable_worker.jobs.events import emit
from reliable_worker.jobs.retry import full_jitter
from reliable_worker.postgres import store
from reliable_worker.postgres.database import Connection, connect
from reliable_worker.settings import Settings

# How long one wait for notifications lasts; then a stop is looked for.
_WAIT_SECONDS = 1.0
# So many silent waits, then the server is asked whether it still listens to us: a connection that
# died without a word would otherwise never be noticed.
_SILENT_WAITS = 30
# Doubled from the first to the last, with full jitter.
_FIRST_PAUSE_SECONDS = 0.25
_LAST_PAUSE_SECONDS = 5.0


class Listener:
    """One thread; calls `notified(payload)` for each notification and once per (re)connect."""

    def __init__(self, settings: Settings, boot: str, notified: Callable[[str], None]) -> None:
        self._settings = settings
        self._boot = boot
        self._notified = notified
        self.up = False  # it hears; read by the main loop
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._run, name="listener", daemon=True)

    def close(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not self._stop.is_set():
            try:
                with connect(self._settings, lane="listen", boot=self._boot) as conn:
                    self._subscribe(conn)
                    self.up = True
                    pause = _FIRST_PAUSE_SECONDS
                    self._notified("")  # what was said while nobody listened
                    self._hear(conn)
            except Exception as error:  # whatever it is: polling goes on, listening is tried again
                self.up = False
                emit("listener_lost", "warning", error=describe(error))
                self._stop.wait(full_jitter(pause))
                pause = min(pause * 2, _LAST_PAUSE_SECONDS)

    def _subscribe(self, conn: Connection) -> None:
        seconds = self._settings.query_timeout_seconds
        with conn.budget(seconds, "query_timeout_seconds"):
            store.listen(conn)

    def _hear(self, conn: Connection) -> None:
        silent = 0
        while not self._stop.is_set():
            heard = False
            with conn.budget(2 * _WAIT_SECONDS, "listen"):
                for notification in conn.notifies(timeout=_WAIT_SECONDS):
                    heard = True
                    self._notified(notification.payload)
                    if self._stop.is_set():
                        return
            silent = 0 if heard else silent + 1
            if silent >= _SILENT_WAITS:
                self._subscribe(conn)  # LISTEN again: harmless, and an answer
                silent = 0
