"""What systemd is told: ready, reloading, stopping, alive, and a line for `systemctl status`.

Floor 5, in the parent; imports nothing of this package. The protocol is one datagram of NAME=VALUE
lines to the socket that NOTIFY_SOCKET names (sd_notify(3)), so it needs no library. Without that
variable every call does nothing.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping

# While the database is down before READY, each word buys this much, and is said three times as
# often: TimeoutStartSec (90 s) must not end a service that waits as it should.
_EXTEND_SECONDS = 60.0
_EXTEND_EVERY_SECONDS = 20.0
# A status line is for a person: not more often than a person looks.
_STATUS_EVERY_SECONDS = 1.0


class Notifier:
    """The way to systemd, for this process alone: children do not find it in their environment."""

    def __init__(self, address: str = "", watchdog_seconds: float = 0.0) -> None:
        """`address` as in NOTIFY_SOCKET (`@` begins an abstract name); "" says nothing ever.

        `watchdog_seconds`: systemd's patience (WatchdogSec), 0 for no watchdog.
        """
        self.watchdog_seconds = watchdog_seconds
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket: socket.socket | None = None
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            # systemd behind its work must not stop ours: what does not fit now is said again.
            self._socket.setblocking(False)
        self._fed_at = self._extended_at = self._status_at = float("-inf")
        self._status = ""

    @classmethod
    def from_environ(cls, environ: MutableMapping[str, str]) -> Notifier:
        """Take NOTIFY_SOCKET and WATCHDOG_* out of the environment: they are not for children."""
        address = environ.pop("NOTIFY_SOCKET", "")
        patience = environ.pop("WATCHDOG_USEC", "")
        meant_for = environ.pop("WATCHDOG_PID", str(os.getpid()))
        if not patience.isdecimal() or meant_for != str(os.getpid()):
            patience = "0"
        return cls(address, int(patience) / 1_000_000)

    def ready(self) -> None:
        self._send("READY=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def reloading(self) -> None:
        # CLOCK_MONOTONIC, as the protocol asks; after it READY=1 ends the reload.
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def status(self, line: str, now: float) -> None:
        """The line of `systemctl status`, sent when it changed and at most once a second."""
        if line != self._status and now - self._status_at >= _STATUS_EVERY_SECONDS:
            self._status, self._status_at = line, now
            self._send(f"STATUS={line}")

    def extend(self, now: float) -> None:
        """Ask for more time before READY; call it at every turn."""
        if now - self._extended_at >= _EXTEND_EVERY_SECONDS:
            self._extended_at = now
            self._send(f"EXTEND_TIMEOUT_USEC={int(_EXTEND_SECONDS * 1_000_000)}")

    def feed(self, now: float) -> None:
        """Feed the watchdog, four times as often as it needs; call it at every healthy turn."""
        if self.watchdog_seconds and now - self._fed_at >= self.watchdog_seconds / 4:
            self._fed_at = now
            self._send("WATCHDOG=1")

    def close(self) -> None:
        """Give the socket up; in a child only its copy."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, text: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(text.encode(), self._address)
        except OSError:
            pass  # systemd gone or its queue full: nothing here depends on being heard
