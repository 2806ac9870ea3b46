"""The parent's ear: signals become bytes in a descriptor, and the loop reads them.

Floor 5, in the parent; imports nothing of this package, because it is the very first thing a run
makes: a SIGTERM that arrives while the rest is still being imported waits here and is not lost.
"""

from __future__ import annotations

import os
import signal
import socket

# All that the parent answers or must survive. SIGCHLD is not among them: pidfds say who died.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)


class Signals:
    """Installs handlers that do nothing: the interpreter's C code writes the number."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        # Full means some hundred signals unread: those in it say enough.
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, _heard)

    def fileno(self) -> int:
        return self._reader.fileno()

    def take(self) -> list[int]:
        """The signals that have arrived since the last call, each at most once, in order."""
        heard = b""
        while True:
            try:
                heard += os.read(self._reader.fileno(), 4096)
            except (BlockingIOError, InterruptedError):
                return list(dict.fromkeys(heard))

    def close(self) -> None:
        """In a forked child, whose wake-up descriptor is another: give up the copies."""
        self._reader.close()
        self._writer.close()


def _heard(number: int, frame: object) -> None:
    """The descriptor has said it already."""
