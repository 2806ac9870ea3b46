"""The parent's end of the line to one child: JSON objects, one a line, both ways.

Floor 5, in the parent; imports nothing of this package. Nothing here waits: what a child does not
take at once is kept and sent when it does. In the child, the end of file of this socket says that
the parent is gone, so no process but the parent may hold a copy of its end.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping

# A turn reads no more than this from one child, so that a flood starves nobody; twice what a
# socket holds, so that a dead child's last words are read at once.
_READS = 64
_READ_BYTES = 1 << 16
# The longest message; what is longer and has no end comes from a stray write and is dropped.
_LINE_BYTES = 1 << 22


class Channel:
    """One child's line."""

    def __init__(self, line: socket.socket) -> None:
        line.setblocking(False)
        self._socket = line
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self.ended = False  # the child's side is closed

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def behind(self) -> bool:
        """Bytes wait for the child to read."""
        return bool(self._outgoing) and not self.ended

    def send(self, message: Mapping[str, object]) -> None:
        """Send, now or later. What is told to a child that dies is lost with it."""
        self._outgoing += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send what the child takes now."""
        while self.behind:
            try:
                taken = self._socket.send(self._outgoing)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._outgoing.clear()  # its death will be seen by its pidfd
                return
            del self._outgoing[:taken]

    def receive(self) -> list[dict[str, object]]:
        """Every whole message that has arrived.

        A child runs foreign code, which can write anything into any descriptor: what is no object
        on a line is skipped.
        """
        for _ in range(_READS):
            if self.ended:
                break
            try:
                data = self._socket.recv(_READ_BYTES)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                data = b""
            self.ended = not data
            self._incoming += data
        *lines, rest = self._incoming.split(b"\n")
        self._incoming = rest if len(rest) <= _LINE_BYTES else bytearray()
        return [message for line in lines if (message := _parse(line)) is not None]

    def close(self) -> None:
        """Give this process's copy up."""
        self._socket.close()


def _parse(line: bytearray) -> dict[str, object] | None:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None
