"""The drain: everybody leaves, maintenance last, all within the stop budget.

Floor 5, in the parent; imports process, jobs and this floor. The rungs: SIGTERM to workers and
quarantine at once; SIGKILL to who is left two seconds before the end; when all are reaped and
maintenance has freed their rows, or the time for it is over, SIGTERM to maintenance.
"""

from __future__ import annotations

from dataclasses import dataclass

from reliable_worker.jobs.events import emit
from reliable_worker.settings import STOP_RESERVE_SECONDS
from reliable_worker.supervisor.child import Process
from reliable_worker.supervisor.obituary import Obituaries
from reliable_worker.supervisor.staff import Staff
from reliable_worker.supervisor.watch import Cause

# A child that has not said ready holds no job: it need not be waited for.
_UNBORN_SECONDS = 0.5
# Before the end, for maintenance to leave in, twice the time that takes; and for its own kill.
_LAST_SECONDS = 1.6
_REAP_SECONDS = 0.3
# From a maintenance process's fork to its first contact, on a busy machine.
_FIRST_CONTACT_SECONDS = 3.0
# A maintenance process that died in the drain is replaced if it has this long to bury the dead.
_REPLACE_SECONDS = 2.0


@dataclass(slots=True, eq=False)
class Ladder:
    """One drain, begun at `began_at` (CLOCK_BOOTTIME)."""

    staff: Staff
    obituaries: Obituaries
    began_at: float
    stop_seconds: float
    killed: int = 0  # children that had to be killed
    _hopeless: bool = False  # maintenance has no database: another one would not have it either

    def turn(self, now: float) -> bool:
        """Climb as far as `now` allows. True: everybody has left."""
        left = self.began_at + self.stop_seconds - now
        crew = self.staff.crew
        for process in crew:
            process.drain()
            if left <= STOP_RESERVE_SECONDS:
                self._kill(process, now)
            elif _unborn(process) and now - self.began_at >= _UNBORN_SECONDS:
                process.kill(Cause.DRAIN, now)
            process.finish_kill(now)
        maintenance = self.staff.maintenance.process
        if crew:
            return False
        if self.obituaries.urgent and left > _LAST_SECONDS:
            if maintenance is None and self.needs_maintenance(now):
                return False  # a replacement is on its way
            if maintenance is not None and _may_bury(maintenance, now):
                return False
            self._hopeless = True
        if maintenance is None:
            return True
        maintenance.drain()
        if left <= _REAP_SECONDS:
            self._kill(maintenance, now)
        elif _unborn(maintenance):
            maintenance.kill(Cause.DRAIN, now)
        maintenance.finish_kill(now)
        return False

    def needs_maintenance(self, now: float) -> bool:
        """There are rows to free, and time for a new maintenance process to do it."""
        left = self.began_at + self.stop_seconds - now
        return self.obituaries.urgent and left > _REPLACE_SECONDS and not self._hopeless

    def _kill(self, process: Process, now: float) -> None:
        if process.killed_for is None:
            self.killed += 1
            emit(
                "child_killed",
                "warning",
                role=str(process.role),
                pid=process.pid,
                cause=str(Cause.DRAIN),
            )
            process.kill(Cause.DRAIN, now)


def _may_bury(maintenance: Process, now: float) -> bool:
    """It has reached the database, or has not had the time to."""
    return maintenance.board.contact > 0 or now - maintenance.born_at < _FIRST_CONTACT_SECONDS


def _unborn(process: Process) -> bool:
    return not process.ready and process.board.held == 0
