"""The deaths that maintenance has to hear of: kept until it says that the rows are free.

Floor 5, in the parent; pure. Every worker's end is told, a clean one too: a claim it had sent can
commit after it is gone, and only the sweep of its boot id finds that row.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass

from reliable_worker.process import Role
from reliable_worker.supervisor.watch import Cause

Run = tuple[int, int]  # (job id, fence)


@dataclass(frozen=True, slots=True)
class Obituary:
    """One reaped child."""

    boot: str
    role: Role
    cause: Cause
    error: str  # what killed it, for last_error
    started: tuple[Run, ...]
    stuck: tuple[Run, ...]
    contact: bool  # it had reached the database: there may be rows to free

    def message(self) -> dict[str, object]:
        """As maintenance hears it."""
        return {
            "say": "obituary",
            "boot": self.boot,
            "role": str(self.role),
            "cause": str(self.cause),
            "error": self.error,
            "started": [list(run) for run in self.started],
            "stuck": [list(run) for run in self.stuck],
        }


class Obituaries:
    """Those not yet acknowledged, oldest first."""

    def __init__(self) -> None:
        self._open: dict[str, Obituary] = {}

    def add(self, obituary: Obituary) -> None:
        self._open[obituary.boot] = obituary

    def buried(self, boot: str) -> None:
        """Maintenance has freed every row of this boot id."""
        self._open.pop(boot, None)

    def __iter__(self) -> Iterator[Obituary]:
        return iter(self._open.values())

    def __len__(self) -> int:
        return len(self._open)

    @property
    def urgent(self) -> bool:
        """There is one whose rows may wait in the database."""
        return any(obituary.contact or obituary.started for obituary in self)


def cause_of(
    code: int, *, killed_for: Cause | None, ready: bool, draining: bool, started: bool
) -> Cause:
    """Why a child died.

    `code` as subprocess has it (negative: the signal), `killed_for` what the parent killed it for,
    `ready` that it had said so, `draining` that it was told to leave at once, `started` that a
    handler was running.
    """
    if killed_for is not None and code in (-signal.SIGABRT, -signal.SIGKILL):
        return killed_for
    if code == 0 and draining:
        return Cause.DRAIN
    # A handler can call os._exit(0): status 0 is no farewell while a job was running.
    if code == 0 and ready and not started:
        return Cause.EXIT
    return Cause.CRASH


def describe_exit(code: int) -> str:
    """An exit code in words: "killed by signal 9 (SIGKILL)", "exited with status 1"."""
    if code >= 0:
        return f"exited with status {code}"
    try:
        return f"killed by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"killed by signal {-code}"


def describe_death(code: int, cause: Cause) -> str:
    """The same for the obituary, which knows what the parent's own kill was for."""
    if cause is Cause.STALL:
        return "killed: its main loop stood still"
    if cause is Cause.TIMEOUT:
        return "killed: a thread outlived its cancellation"
    return describe_exit(code)
