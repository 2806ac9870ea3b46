"""The parent's record of one child: how to reach it, what it has said, what was done to it.

Floor 5, in the parent; imports process, jobs and this floor's channel and watch. A child is named
by its pidfd: its death wakes the loop, and no signal can reach a stranger that has its pid by then.
Where there are none (macOS, for development) it is named by its pid until it is reaped.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from typing import Protocol

from reliable_worker.jobs.board import ChildBoard
from reliable_worker.process import Role
from reliable_worker.settings import Settings
from reliable_worker.supervisor.channel import Channel
from reliable_worker.supervisor.watch import Cause, Facts

# From SIGABRT (the stacks are written) to SIGKILL.
_DUMP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Failure:
    """A child's own last line: why it cannot work, and the exit code it deserves."""

    code: int
    line: str


class Handle(Protocol):
    """A child's process, until it is reaped."""

    def fileno(self) -> int:
        """A descriptor that is readable once the process has died; -1: there is none."""
        ...

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, to nobody if it has died."""
        ...

    def reap(self) -> int | None:
        """The exit code (negative: the signal), None while it lives; not again after a code."""
        ...

    def close(self) -> None: ...


class Pidfd:
    """A process by descriptor."""

    def __init__(self, pid: int) -> None:
        self._descriptor = os.pidfd_open(pid)

    def fileno(self) -> int:
        return self._descriptor

    def signal(self, number: signal.Signals) -> None:
        try:
            signal.pidfd_send_signal(self._descriptor, number)
        except ProcessLookupError:
            pass  # it has died meanwhile; reaping says how

    def reap(self) -> int | None:
        result = os.waitid(os.P_PIDFD, self._descriptor, os.WEXITED | os.WNOHANG)
        if result is None:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def close(self) -> None:
        os.close(self._descriptor)


class Pid:
    """A process by number, which is safe as long as only we can reap it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._reaped = False

    def fileno(self) -> int:
        return -1

    def signal(self, number: signal.Signals) -> None:
        if not self._reaped:
            os.kill(self._pid, number)  # a zombie still has its number

    def reap(self) -> int | None:
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid == 0:
            return None
        self._reaped = True
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """Nothing to give up."""


def handle(pid: int) -> Handle:
    """The best name for a child just forked."""
    return Pidfd(pid) if hasattr(os, "pidfd_open") else Pid(pid)


@dataclass(slots=True, eq=False)
class Process:
    """One living child."""

    role: Role
    index: int
    pid: int
    boot: str
    settings: Settings
    handle: Handle
    channel: Channel
    board: ChildBoard
    born_at: float
    ready: bool = False  # has said so: application imported, threads up
    kinds: tuple[str, ...] = ()
    failure: Failure | None = None
    retiring: bool = False
    draining: bool = False
    killed_for: Cause | None = None
    killed_at: float = 0.0
    _stuck_since: float = field(default=0.0)
    _dumping: bool = field(default=False)

    @property
    def serving(self) -> bool:
        """Ready, and it has reached the database with a schema it works with."""
        return self.ready and self.board.ready

    def retire(self) -> None:
        """Ask it to leave when its own jobs have ended."""
        if not self.retiring:
            self.retiring = True
            self.handle.signal(signal.SIGUSR1)

    def drain(self) -> None:
        """Ask it to leave now."""
        if not self.draining:
            self.draining = True
            self.handle.signal(signal.SIGTERM)

    def kill(self, cause: Cause, now: float) -> None:
        """End it. One that may still tell where it hangs is first made to write its stacks."""
        if self.killed_for is not None:
            return
        self.killed_for, self.killed_at = cause, now
        self._dumping = cause in (Cause.STALL, Cause.TIMEOUT)
        self.handle.signal(signal.SIGABRT if self._dumping else signal.SIGKILL)

    def finish_kill(self, now: float) -> None:
        """The second half of a kill, once the stacks had their time."""
        if self._dumping and now - self.killed_at >= _DUMP_SECONDS:
            self._dumping = False
            self.handle.signal(signal.SIGKILL)

    def facts(self, now: float, watched_since: float) -> Facts:
        """What the board says of it now."""
        stuck = len(self.board.stuck())
        if not stuck:
            self._stuck_since = 0.0
        elif not self._stuck_since:
            self._stuck_since = now
        return Facts(
            now=now,
            born_at=self.born_at,
            ready=self.ready,
            beat_at=self.board.beat_at,
            deadline=self.board.deadline,
            held=self.board.held,
            started=len(self.board.started()),
            stuck=stuck,
            stuck_since=self._stuck_since,
            watched_since=watched_since,
        )

    def close(self) -> None:
        """Give this process's descriptors up: after reaping, or in a forked sibling."""
        self.channel.close()
        self.handle.close()


def reap_strangers(ours: set[int]) -> None:
    """As PID 1, reap what was orphaned in the container; nobody else would."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid in ours:  # ours are reaped by their handles
            return
        os.waitpid(found.si_pid, os.WNOHANG)
