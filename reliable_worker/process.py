"""The child's side of the fork: what a process is handed, and the loop its main thread runs.

On a job's way: every process that touches a job was forked by the supervisor and is handed a
`Child`. Its main thread runs `Loop`, which beats on the board, hears signals and the parent, and
says when to stop; all work is done in other threads.

Floor 0: imports `jobs` and `settings` only, so that the worker and the maintenance service need
not know the supervisor.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from reliable_worker.jobs.board import ChildBoard
from reliable_worker.jobs.counters import Meters
from reliable_worker.jobs.deadline import boottime
from reliable_worker.settings import Settings

_TICK_SECONDS = 0.2  # the longest sleep of the loop: five beats a second
_LINE_LIMIT = 1 << 20  # bytes of one message; an obituary of 1,000 jobs is 30 KiB
_BACKLOG_LIMIT = 1 << 22  # bytes waiting for a parent that does not read; then messages are lost
_ORPHAN_SECONDS = 2  # a process whose parent is gone is gone after this, whatever its threads do


class Role(StrEnum):
    """What a child is for."""

    WORKER = "worker"
    MAINTENANCE = "maintenance"
    QUARANTINE = "quarantine"
    TRIAL = "trial"


class Stop(IntEnum):
    """How urgently a child should leave. A level only ever rises."""

    RUN = 0
    RETIRE = 1  # SIGUSR1: claim no more, leave when the own jobs have ended
    DRAIN = 2  # SIGTERM: release what cannot end within the budget, then leave
    ORPHANED = 3  # the parent is gone: release within 1 s, gone within 2


@dataclass(frozen=True, slots=True)
class Child:
    """All that a child is handed at its birth."""

    role: Role
    index: int  # its row on the board and among the counters
    boot: str  # 32 hex digits, fresh for each fork: the prefix of every owner's name in it
    slots: int
    settings: Settings
    channel: socket.socket  # AF_UNIX stream: JSON lines both ways, EOF = the other side is gone
    board: ChildBoard
    meters: Meters
    once: bool = False
    drain: bool = False
    wakeup: int = -1  # read end of the signal wake-up descriptor; -1: no signals are routed


ChildMain = Callable[[Child], int]
"""A child's main: runs in its main thread before any other thread exists; returns the exit code."""

_LEVELS: dict[int, Stop] = {signal.SIGUSR1: Stop.RETIRE, signal.SIGTERM: Stop.DRAIN}


def route_signals() -> int:
    """Make this process hear SIGTERM and SIGUSR1 through a descriptor, and outlive what is its
    parent's to answer: SIGINT, SIGQUIT and SIGHUP, which a terminal sends to the whole group.

    Handlers do nothing; the interpreter's C code writes the signal's number to the descriptor, so
    that nothing runs in the middle of something else. (They are not SIG_IGN, which a handler's
    subprocess would inherit.) Returns the read end. Call it in the main thread.
    """
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    # A full descriptor means that the level is known already: no warning.
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    for number in (*_LEVELS, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, _heard)
    return reader.detach()


def _heard(number: int, frame: object) -> None:
    """The wake-up descriptor has said it already."""


class Loop:
    """The main thread's loop: beats, listens, and says when to stop.

    `on_stop(level)` is called whenever the level rises, `on_message(message)` for each message of
    the parent, `on_tick()` at each turn (at least five times a second). All three run in the
    loop's thread and must not block: a loop that does not turn does not beat, and a child that
    does not beat is killed.
    """

    def __init__(
        self,
        child: Child,
        *,
        on_stop: Callable[[Stop], None],
        on_message: Callable[[dict[str, object]], None],
        on_tick: Callable[[], None] | None = None,
    ) -> None:
        self._child = child
        self._on_stop = on_stop
        self._on_message = on_message
        self._on_tick = on_tick
        self.level = Stop.RUN
        self._lock = threading.Lock()  # guards the outgoing bytes
        self._outgoing = bytearray()
        self._incoming = bytearray()
        self._closed = False
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        child.channel.setblocking(False)

    def run(self, done: Callable[[], bool]) -> None:
        """Turn until `done()`. May be called again, for another thing to wait for."""
        while True:
            self._child.board.beat(boottime())
            if self._on_tick is not None:
                self._on_tick()
            if done():
                return
            self._turn(_TICK_SECONDS)

    def send(self, message: Mapping[str, object]) -> None:
        """Tell the parent. Thread-safe; never waits; what a deaf parent cannot take is dropped."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            if len(self._outgoing) + len(line) <= _BACKLOG_LIMIT:
                self._outgoing += line
                self._flush()
                behind = bool(self._outgoing)
            else:
                behind = False
        if behind:
            self.wake()  # so that the loop waits for the channel to take the rest

    def wake(self) -> None:
        """Make `run` look at `done()` now. Thread-safe, never waits."""
        try:
            self._wake_writer.send(b"\0")
        except OSError:
            pass  # full: it is awake already; closed: it has left

    def _turn(self, seconds: float) -> None:
        """Wait for a signal, a word of the parent or a wake-up, and act on it."""
        channel = self._child.channel
        poller = select.poll()
        poller.register(self._wake_reader, select.POLLIN)
        if self._child.wakeup >= 0:
            poller.register(self._child.wakeup, select.POLLIN)
        if not self._closed:
            with self._lock:
                behind = bool(self._outgoing)
            poller.register(channel, select.POLLIN | (select.POLLOUT if behind else 0))
        for descriptor, events in poller.poll(seconds * 1000):
            if descriptor == self._wake_reader.fileno():
                _drain(descriptor)
            elif descriptor == self._child.wakeup:
                for number in _drain(descriptor):
                    self._raise(_LEVELS.get(number, Stop.RUN))
            else:
                if events & select.POLLOUT:
                    with self._lock:
                        self._flush()
                if events & ~select.POLLOUT:
                    self._read()

    def _raise(self, level: Stop) -> None:
        if level > self.level:
            self.level = level
            if level is Stop.ORPHANED:
                # The kernel's alarm needs neither the interpreter's lock nor a willing thread.
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(_ORPHAN_SECONDS)
            self._on_stop(level)

    def _read(self) -> None:
        try:
            data = self._child.channel.recv(1 << 16)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""  # a reset says the same as an end
        if not data:
            self._closed = True
            self._raise(Stop.ORPHANED)
            return
        self._incoming += data
        *lines, rest = self._incoming.split(b"\n")
        self._incoming = bytearray() if len(rest) > _LINE_LIMIT else rest
        for line in lines:
            message = json.loads(line)
            if isinstance(message, dict):
                self._on_message(message)

    def _flush(self) -> None:
        """Hand the channel what it takes at once. The caller holds the lock."""
        while self._outgoing and not self._closed:
            try:
                taken = self._child.channel.send(self._outgoing)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._outgoing.clear()  # the parent is gone; reading says so
                return
            del self._outgoing[:taken]


def _drain(descriptor: int) -> bytes:
    """Every byte that waits in a non-blocking descriptor."""
    data = b""
    while True:
        try:
            piece = os.read(descriptor, 4096)
        except (BlockingIOError, InterruptedError):
            return data
        if not piece:
            return data
        data += piece
