"""A runner: one thread that calls the services of one lane, each when it is due.

On a job's way: behind every service of this floor. It survives whatever a service raises: a lost
database pauses the lane, any other failure pauses that service, and both are told at a bounded
rate. Floor 4. Imports postgres and jobs.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.errors import describe
from reliable_worker.jobs.events import emit
from reliable_worker.maintenance.lane import Lane
from reliable_worker.maintenance.pace import Reconnect
from reliable_worker.postgres.database import Fault, classify

# After an error that is not the connection's a service rests so long: it will most likely fail
# again, and others share its lane.
FAILURE_PAUSE_SECONDS = 1.0
# The same trouble is told once in so many seconds.
TELL_SECONDS = 10.0
# SQLSTATE class 28: the server refuses this role or password.
_REFUSED = "28"


class Service(Protocol):
    """A duty of maintenance."""

    @property
    def name(self) -> str:
        """Names it in events."""

    def due_at(self) -> float:
        """When to call it next (CLOCK_BOOTTIME); inf: nothing to do."""

    def run_once(self, lane: Lane) -> int:
        """Do what is due; how much that was. May raise anything."""


class Runner(threading.Thread):
    """Calls the services, the most overdue first, until stopped."""

    def __init__(self, lane: Lane, services: Sequence[Service]) -> None:
        super().__init__(name=f"maintenance-{lane.name}", daemon=True)
        self._lane = lane
        self._services = tuple(services)  # replaced as a whole
        self._stopping = False
        self._awake = threading.Event()
        self._reconnect = Reconnect()
        self._resumes_at = 0.0  # the lane's pause after a lost database
        self._rests: dict[str, float] = {}  # services that failed, until when
        self._told: dict[str, tuple[float, int]] = {}  # event: when last told, how often since

    def wake(self) -> None:
        """Look at the services again. Thread-safe."""
        self._awake.set()

    def serve(self, services: Sequence[Service]) -> None:
        """Call these services from now on. Thread-safe."""
        self._services = tuple(services)
        self.wake()

    def stop(self) -> None:
        """End after the call under way, and close the connection. Thread-safe."""
        self._stopping = True
        self.wake()

    def run(self) -> None:
        while not self._stopping:
            self._awake.clear()
            service = min(self._services, key=self._due_at)
            wait = self._due_at(service) - boottime()
            if wait > 0:
                # Services may become due by a message, which wakes this thread.
                self._awake.wait(min(wait, threading.TIMEOUT_MAX))
            else:
                self._call(service)
        self._lane.close()

    def _due_at(self, service: Service) -> float:
        return max(service.due_at(), self._resumes_at, self._rests.get(service.name, 0.0))

    def _call(self, service: Service) -> None:
        try:
            service.run_once(self._lane)
        except Exception as error:
            self._pause(service, error)
            self._tell(service, error)
        else:
            self._reconnect.succeeded()

    def _pause(self, service: Service, error: Exception) -> None:
        if classify(error) is Fault.INFRASTRUCTURE:
            refused = str(getattr(error, "sqlstate", None) or "").startswith(_REFUSED)
            self._resumes_at = boottime() + self._reconnect.pause(refused=refused)
        else:
            self._rests[service.name] = boottime() + FAILURE_PAUSE_SECONDS

    def _tell(self, service: Service, error: Exception) -> None:
        census = service.name == "census"
        event, level = ("census_failed", "warning") if census else ("reaper_failed", "error")
        at = boottime()
        last, untold = self._told.get(event, (float("-inf"), 0))
        if at - last < TELL_SECONDS:
            self._told[event] = (last, untold + 1)
            return
        self._told[event] = (at, 0)
        emit(event, level, service=service.name, error=describe(error), untold=untold)
