"""The parent's record of one child: how to reach it, what it has said, what was done to it.

Floor 5, in the parent; imports process, jobs and this floor's channel and watch. A child is named
by its pidfd: a pid may belong to a stranger by the time a signal is sent.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field

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
        """The exit code (negative: the signal), None while it lives."""
        result = os.waitid(os.P_PIDFD, self._descriptor, os.WEXITED | os.WNOHANG)
        if result is None:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def close(self) -> None:
        os.close(self._descriptor)


@dataclass(slots=True, eq=False)
class Process:
    """One living child."""

    role: Role
    index: int
    pid: int
    boot: str
    settings: Settings
    pidfd: Pidfd
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
            self.pidfd.signal(signal.SIGUSR1)

    def drain(self) -> None:
        """Ask it to leave now."""
        if not self.draining:
            self.draining = True
            self.pidfd.signal(signal.SIGTERM)

    def kill(self, cause: Cause, now: float) -> None:
        """End it. One that may still tell where it hangs is first made to write its stacks."""
        if self.killed_for is not None:
            return
        self.killed_for, self.killed_at = cause, now
        self._dumping = cause in (Cause.STALL, Cause.TIMEOUT)
        self.pidfd.signal(signal.SIGABRT if self._dumping else signal.SIGKILL)

    def finish_kill(self, now: float) -> None:
        """The second half of a kill, once the stacks had their time."""
        if self._dumping and now - self.killed_at >= _DUMP_SECONDS:
            self._dumping = False
            self.pidfd.signal(signal.SIGKILL)

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
        self.pidfd.close()


def reap_strangers(ours: set[int]) -> None:
    """As PID 1, reap what was orphaned in the container; nobody else would."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid in ours:  # ours have pidfds to be reaped by
            return
        os.waitpid(found.si_pid, os.WNOHANG)
