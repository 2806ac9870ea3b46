"""Who should be there, who is, and the way from one to the other: places, hiring, reaping.

Floor 5, in the parent; imports process, jobs, settings and this floor's fork and pace. A place is
a role and an index: its number on the shared counters, the same for every child that fills it.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from reliable_worker.jobs.counters import Arena
from reliable_worker.jobs.events import emit
from reliable_worker.process import ChildMain, Role
from reliable_worker.settings import Settings
from reliable_worker.supervisor.child import Process
from reliable_worker.supervisor.fork import Birth, Registry, fork
from reliable_worker.supervisor.pace import Pace

# Rows of the counters are laid out before the first fork; a reload may ask for more processes
# than there were at the start, up to this many. (Untouched rows cost address space only.)
_SPARE_PROCESSES = 16
# Handlers, heartbeats and the threads around them write counters; more threads share a row.
_THREADS_BESIDE = 8


@dataclass(slots=True, eq=False)
class Place:
    """A child's place, filled or empty."""

    role: Role
    index: int  # among the counters
    number: int  # within its role
    process: Process | None = None
    due_at: float = 0.0  # when an empty one may be filled
    reason: str = ""  # why its last child left; "" for the first
    pace: Pace = field(default_factory=Pace)


class Staff:
    """All children. `on_message` and `on_death` are called in the loop, the last with the exit
    code; a place is empty by then, its process still readable but reaped."""

    def __init__(
        self,
        settings: Settings,
        mains: Mapping[Role, ChildMain],
        *,
        once: bool,
        drain: bool,
        registry: Registry,
        selector: selectors.BaseSelector,
        on_message: Callable[[Process, dict[str, object]], None],
        on_death: Callable[[Place, Process, int], None],
    ) -> None:
        self.settings = settings
        self.capacity = max(settings.processes, _SPARE_PROCESSES)
        self.arena = Arena(2 * self.capacity + 2, 2 * _slots(settings, 0) + _THREADS_BESIDE)
        self._mains = mains
        self._once = once
        self._drain = drain
        self._registry = registry
        self._selector = selector
        self._on_message = on_message
        self._on_death = on_death
        numbers = range(self.capacity)
        self.workers = [Place(Role.WORKER, number, number) for number in numbers]
        self.quarantine = [
            Place(Role.QUARANTINE, self.capacity + number, number) for number in numbers
        ]
        self.maintenance = Place(Role.MAINTENANCE, 2 * self.capacity, 0)
        self.trial = Place(Role.TRIAL, 2 * self.capacity + 1, 0)

        self.places = (*self.workers, *self.quarantine, self.maintenance, self.trial)

    @property
    def processes(self) -> list[Process]:
        """Every living child."""
        return [place.process for place in self.places if place.process is not None]

    @property
    def crew(self) -> list[Process]:
        """Every living child but maintenance, which leaves last."""
        return [process for process in self.processes if process.role is not Role.MAINTENANCE]

    @property
    def wanted_workers(self) -> list[Place]:
        """The worker places of the present settings."""
        return self.workers[: 1 if self._once else self.settings.processes]

    def serving(self) -> bool:
        """Every wanted worker and maintenance are ready and have reached the database."""
        places = (*self.wanted_workers, self.maintenance)
        return all(place.process is not None and place.process.serving for place in places)

    def hire(self, place: Place, settings: Settings | None = None) -> Process:
        """Fill an empty place, with the present settings or those of a trial. Raises OSError."""
        settings = settings or self.settings
        slots = 1
        if place.role is Role.WORKER:
            slots = settings.workers if self._once else _slots(settings, place.number)
        birth = Birth(place.role, place.index, slots, settings, once=self._once, drain=self._drain)
        meters = self.arena.child(place.index)
        process = fork(birth, self._mains[place.role], meters, self._registry)
        place.process = process
        self._selector.register(process.channel, selectors.EVENT_READ, process)
        if process.handle.fileno() >= 0:
            self._selector.register(process.handle, selectors.EVENT_READ, process)
        emit("child_started", role=str(place.role), pid=process.pid, boot=process.boot)
        if place.reason:
            emit("child_restarted", reason=place.reason, role=str(place.role))
        return process

    def turn(self) -> None:
        """Hear every child, send what could not be sent, bury the dead."""
        for place in self.places:
            process = place.process
            if process is None:
                continue
            code = process.handle.reap()
            # After the reaping: its last words lie in the channel, complete.
            for message in process.channel.receive():
                self._on_message(process, message)
            if code is None:
                self._mind(process)
            else:
                self._bury(place, process, code)

    def _mind(self, process: Process) -> None:
        process.channel.flush()
        if process.channel.ended:
            # A handler can close any descriptor: its death will show, its words will not.
            if process.channel in self._selector.get_map():
                self._selector.unregister(process.channel)
            return
        write = selectors.EVENT_WRITE if process.channel.behind else 0
        self._selector.modify(process.channel, selectors.EVENT_READ | write, process)

    def _bury(self, place: Place, process: Process, code: int) -> None:
        for item in (process.channel, process.handle):
            if item.fileno() >= 0 and item in self._selector.get_map():
                self._selector.unregister(item)
        self._registry.discard(process)
        process.close()
        place.process = None
        self.arena.fold(place.index)
        self._on_death(place, process, code)


def _slots(settings: Settings, number: int) -> int:
    """Thread workers of worker process `number`: `workers` spread over `processes`."""
    each, more = divmod(settings.workers, settings.processes)
    return each + (number < more)
