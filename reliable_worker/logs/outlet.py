"""Standard output as the log's own: taken at exec, written without ever waiting.

Floor 0; imports nothing of the package. Whether a write can wait is a property of the open file
description, which we share with whoever gave it to us (a shell, a terminal's other programs):
setting O_NONBLOCK there would break them. So a pipe or terminal is opened anew through /proc, a
socket is asked per call, and a file never makes anybody wait for a reader.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import socket
import stat
import sys
from collections.abc import Callable

# Where the private descriptor is put at least: above what shells and supervisors number by hand.
_LOWEST_DESCRIPTOR = 10

_STDOUT, _STDERR = 1, 2

_JOURNAL = "/run/systemd/journal/socket"

Write = Callable[[bytes], int]


class Outlet:
    """A descriptor that takes lines or says it cannot now."""

    def __init__(self, descriptor: int) -> None:
        """Make the private writer of what `descriptor` refers to; the descriptor itself stays."""
        self._socket: socket.socket | None = None
        self._fd = -1
        self._write: Write = len
        self.is_journal = False  # every write is an entry of journald's native protocol
        self.is_terminal = False
        try:
            status = os.fstat(descriptor)
        except OSError:
            # Closed by whoever started us: nobody wants to read, every line is taken and gone.
            return
        mode = status.st_mode
        self.is_terminal = os.isatty(descriptor)
        # systemd names here the stream it made of stdout: only if ours is still that one.
        named = os.environ.get("JOURNAL_STREAM", "") == f"{status.st_dev}:{status.st_ino}"
        if named and self._open_journal():
            return
        if stat.S_ISSOCK(mode):
            self._fd = _private_copy(descriptor)
            self._socket = socket.socket(fileno=self._fd)
            self._write = self._send
        elif stat.S_ISFIFO(mode) or self.is_terminal:
            self._open_again(descriptor, stat.S_ISFIFO(mode))
        else:
            # A copy keeps the description and with it offset and O_APPEND, shared by all processes.
            self._fd = _private_copy(descriptor)
            self._write = lambda data: os.write(self._fd, data)

    def fileno(self) -> int:
        """For a selector that waits for room; -1: standard output is closed."""
        return self._fd

    def write(self, data: bytes) -> int:
        """How many bytes were taken; 0: no room now. OSError: they never will be (no reader)."""
        try:
            return self._write(data)
        except (BlockingIOError, InterruptedError):
            return 0

    def wait(self, seconds: float) -> None:
        """Until there is room, at most so long."""
        if self._fd >= 0:
            poll = select.poll()
            poll.register(self._fd, select.POLLOUT)
            poll.poll(seconds * 1000)

    def _send(self, data: bytes) -> int:
        assert self._socket is not None
        return self._socket.send(data, socket.MSG_DONTWAIT)

    def _open_journal(self) -> bool:
        """Reach journald itself; False: it is not there, its stream will do."""
        reached = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            reached.connect(_JOURNAL)
        except OSError:
            reached.close()
            return False
        self._fd = _private_copy(reached.fileno())
        reached.close()
        self._socket = socket.socket(fileno=self._fd)
        self._write = self._send
        self.is_journal = True
        return True

    def _open_again(self, descriptor: int, is_pipe: bool) -> None:
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        try:
            fd = os.open(f"/proc/self/fd/{descriptor}", flags)
        except OSError:
            # Another user's pipe (a service that dropped its privileges), or no /proc.
            self._fd = _private_copy(descriptor)
            self._write = self._write_if_room
            if is_pipe and hasattr(os, "RWF_NOWAIT"):
                self._write = self._write_nowait
            return
        self._fd = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LOWEST_DESCRIPTOR)
        os.close(fd)
        self._write = lambda data: os.write(self._fd, data)

    def _write_nowait(self, data: bytes) -> int:
        """Per-call non-blocking writes, where the kernel knows them for pipes (Linux ≥ 6.5)."""
        try:
            return os.pwritev(self._fd, [data], -1, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ESPIPE, errno.EINVAL, errno.ENOSYS):
                raise
        self._write = self._write_if_room
        return self._write_if_room(data)

    def _write_if_room(self, data: bytes) -> int:
        """A pipe that polls writable has a free page: a line fits, if no sibling is quicker."""
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return os.write(self._fd, data) if poll.poll(0) else 0


def take_stdout() -> Outlet:
    """Keep standard output for log lines and point descriptor 1 at stderr for everybody else.

    From here on nothing but the outlet reaches the reader of stdout: no print of a handler, of a
    library or of a subprocess.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
        # What is printed goes to stderr from here on: line by line, and not lost by an _exit.
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    outlet = Outlet(_STDOUT)
    try:
        os.dup2(_STDERR, _STDOUT)
    except OSError:
        # stderr is closed: what is printed goes nowhere, and not into a file opened by chance as 1.
        null = os.open(os.devnull, os.O_WRONLY)
        if null != _STDOUT:
            os.dup2(null, _STDOUT)
            os.close(null)
    return outlet


def _private_copy(descriptor: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _LOWEST_DESCRIPTOR)
