"""The fork: everything between the parent's one thread and a child's main.

Floor 5; imports process, jobs, settings and logs. Signals are blocked around the fork, so that
none is answered by the wrong process: a child keeps them blocked until it hears them on a
descriptor of its own. The child closes whatever the parent holds by a registry, and never returns.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import faulthandler
import gc
import json
import os
import secrets
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from reliable_worker import logs
from reliable_worker.jobs import events, failpoints, meters
from reliable_worker.jobs.board import Board
from reliable_worker.jobs.counters import Meters
from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.errors import describe
from reliable_worker.process import Child, ChildMain, Role, route_signals
from reliable_worker.settings import Settings
from reliable_worker.supervisor.channel import Channel
from reliable_worker.supervisor.child import Process, handle
from reliable_worker.supervisor.signals import SIGNALS

_PR_SET_PDEATHSIG = 1
_FLUSH_SECONDS = 0.5
# Out of memory, a child dies before the parent, which answers for its jobs: half of the limit on
# top of what the child uses itself, so that of two children the bigger one is taken.
_OOM_SCORE = 500


class Closable(Protocol):
    """Something of the parent's that a child must give up."""

    def close(self) -> None: ...


class InChild:
    """For what a child gives up in another way than the parent closes it."""

    def __init__(self, close: Callable[[], None]) -> None:
        self.close = close


class Registry:
    """What the parent holds and no child may: siblings' channels, pidfds, the listener, clients."""

    def __init__(self) -> None:
        self._items: list[Closable] = []

    def add(self, item: Closable) -> None:
        self._items.append(item)

    def discard(self, item: Closable) -> None:
        self._items = [kept for kept in self._items if kept is not item]

    def close_all(self) -> None:
        """In a child: close the copies."""
        for item in self._items:
            with contextlib.suppress(OSError):
                item.close()


@dataclass(frozen=True, slots=True)
class Birth:
    """What a child is to be."""

    role: Role
    index: int
    slots: int
    settings: Settings
    once: bool = False
    drain: bool = False


def fork(birth: Birth, main: ChildMain, meters_of: Meters, registry: Registry) -> Process:
    """Fork a child that runs `main` and exits with its return value; the parent's record of it.

    Raises OSError where the system has no process or descriptor left.
    """
    board = Board(children=1, slots=birth.slots).child(0)  # a fresh one: sized by its settings
    boot = secrets.token_hex(16)
    ours, theirs = socket.socketpair()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    with _blocked(), _frozen():
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            child = Child(
                role=birth.role,
                index=birth.index,
                boot=boot,
                slots=birth.slots,
                settings=birth.settings,
                channel=theirs,
                board=board,
                meters=meters_of,
                once=birth.once,
                drain=birth.drain,
            )
            registry.add(ours)
            _live(child, main, registry, parent)  # never returns
    theirs.close()
    process = Process(
        role=birth.role,
        index=birth.index,
        pid=pid,
        boot=boot,
        settings=birth.settings,
        handle=handle(pid),
        channel=Channel(ours),
        board=board,
        born_at=boottime(),
    )
    registry.add(process)
    return process


@contextlib.contextmanager
def _blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _frozen() -> Iterator[None]:
    """Keep the child's collector off the parent's objects: the pages stay shared, and no object of
    the parent is finalised in a child."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _live(child: Child, main: ChildMain, registry: Registry, parent: int) -> None:
    """The child's whole life. Leaves by os._exit, so that nothing of the parent runs in it."""
    code = 1
    try:
        code = main(_be_born(child, registry, parent))
    except BaseException as error:
        _confess(child, error)
    finally:
        try:
            _flush()
        finally:
            os._exit(code if 0 <= code <= 255 else 1)


def _be_born(child: Child, registry: Registry, parent: int) -> Child:
    """Become a process of its own: its own death, descriptors, observers and signals."""
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    _die_with(parent)
    _die_first()
    registry.close_all()
    events.clear()
    meters.attach(child.meters)
    faulthandler.enable(file=2, all_threads=True)
    child.board.beat(boottime())
    born = dataclasses.replace(child, wakeup=route_signals())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    failpoints.reach("after_fork")
    logs.start_child()
    return born


def _confess(child: Child, error: BaseException) -> None:
    """Say what ended the main: to the parent, in a line, and where, on stderr.

    Not the exception's text as it is: it may quote a payload or an URL.
    """
    with contextlib.suppress(Exception):
        line = f"{child.role} process failed: {describe(error)}"
        os.write(2, f"{line}\n{''.join(traceback.format_tb(error.__traceback__))}".encode())
        said = json.dumps({"say": "failed", "exit": 1, "line": line})
        child.channel.send(f"\n{said}\n".encode())  # after whatever half a line was sent before


def _die_first() -> None:
    """Be killed before the parent when memory runs out. Raising the score needs no privilege."""
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/self/oom_score_adj", "r+", encoding="ascii") as score:
            if int(score.read()) < _OOM_SCORE:
                score.seek(0)
                score.write(str(_OOM_SCORE))


def _die_with(parent: int) -> None:
    """SIGTERM when the parent dies, besides the end of the channel.

    The parent may have died before the kernel was asked: then nobody will ever say so.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _flush() -> None:
    """Write out what is buffered, but not for ever: a reader that has stopped must not keep us."""
    logs.close(_FLUSH_SECONDS)
    writer = threading.Thread(target=_flush_streams, daemon=True)
    with contextlib.suppress(RuntimeError):  # no thread to be had: the lines are lost
        writer.start()
        writer.join(_FLUSH_SECONDS)


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
