"""SIGHUP: the file settings anew, tried in a trial child, then one replacement after the other.

Floor 5, in the parent; imports process, jobs, settings and this floor. The parent itself never
imports the application, so each replacement imports it afresh. Whatever is wrong with the new
settings shows before a single child is touched.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import Enum, auto

from reliable_worker.jobs.events import emit
from reliable_worker.process import Role
from reliable_worker.settings import Settings, SettingsError
from reliable_worker.supervisor.child import Process
from reliable_worker.supervisor.obituary import describe_exit
from reliable_worker.supervisor.staff import Place, Staff
from reliable_worker.supervisor.systemd import Notifier


class _Stage(Enum):
    IDLE = auto()
    TRIAL = auto()
    ROLLING = auto()


class Reload:
    """One reload at a time; a SIGHUP during one starts over with what the file says by then."""

    def __init__(self, staff: Staff, read: Callable[[], Settings], notifier: Notifier) -> None:
        """`read` reads and checks the settings again; raises SettingsError."""
        self._staff = staff
        self._read = read
        self._notifier = notifier
        self._stage = _Stage.IDLE
        self._wanted = False
        self._announced = False
        self._settings = staff.settings
        self._queue: list[tuple[Place, Process]] = []
        self._current: tuple[Place, Process, bool] | None = None

    @property
    def active(self) -> bool:
        return self._wanted or self._stage is not _Stage.IDLE

    def ask(self) -> None:
        """SIGHUP has arrived. Any number of them before the next turn are one."""
        self._wanted = True

    def turn(self, serving: bool) -> None:
        """Do what can be done now. `serving`: the run has been ready (systemd has heard it)."""
        if self._wanted and self._stage is not _Stage.TRIAL:
            self._wanted = False
            self._begin(serving)
        elif self._stage is _Stage.ROLLING:
            self._roll()

    def trial_ended(self, process: Process, code: int) -> None:
        """The trial child was reaped."""
        if self._stage is not _Stage.TRIAL:
            return
        if code != 0:
            failure = process.failure
            self._fail(failure.line if failure else f"the trial child {describe_exit(code)}")
            return
        staff = self._staff
        staff.settings = self._settings
        places = (*staff.workers, staff.maintenance)
        self._queue = [(place, place.process) for place in places if place.process is not None]
        for place in staff.quarantine:  # forked on demand, so nothing waits for them
            if place.process is not None:
                place.process.retire()
        self._stage = _Stage.ROLLING

    def _begin(self, serving: bool) -> None:
        if self._stage is _Stage.IDLE:
            emit("reload_started")
        if serving and not self._announced:
            self._announced = True
            self._notifier.reloading()
        self._queue, self._current = [], None
        try:
            self._settings = self._keep(self._read())
            self._staff.hire(self._staff.trial, self._settings)
        except SettingsError as error:
            self._fail(str(error))
        except OSError as error:
            self._fail(f"no trial child: {error.strerror}")
        else:
            self._stage = _Stage.TRIAL

    def _keep(self, settings: Settings) -> Settings:
        """The new settings, but what was built before the first fork stays and is said to."""
        now = self._staff.settings
        for name in ("metrics_address", "log_level", "log_format"):
            if getattr(settings, name) != getattr(now, name):
                self._needs_restart(name)
                settings = dataclasses.replace(settings, **{name: getattr(now, name)})
        if settings.processes > self._staff.capacity:
            self._needs_restart("processes")
            settings = dataclasses.replace(settings, processes=now.processes)
            if settings.workers < settings.processes:
                settings = dataclasses.replace(settings, workers=now.workers)
        return settings

    def _needs_restart(self, setting: str) -> None:
        emit(
            "reload_incomplete",
            "warning",
            setting=setting,
            reason=f"{setting} needs a restart; the old value stays",
        )

    def _roll(self) -> None:
        """Retire, wait for the end, wait for the replacement: one place after the other."""
        if self._current is not None:
            place, old, was_serving = self._current
            if place.process is old:
                return
            wanted = place.role is Role.MAINTENANCE or place in self._staff.wanted_workers
            new = place.process
            if wanted and (new is None or (was_serving and not new.serving)):
                return
            self._current = None
        while self._queue:
            place, old = self._queue[0]
            if place.process is not old:  # it has died meanwhile: replaced already
                self._queue.pop(0)
                continue
            # Never two places at once: another child may be down for a reason of its own.
            if old.serving and not self._others_serve(place):
                return
            self._queue.pop(0)
            self._current = (place, old, old.serving)
            old.retire()
            return
        emit("reload_complete")
        self._end()

    def _others_serve(self, place: Place) -> bool:
        return all(
            other is place or (other.process is not None and other.process.serving)
            for other in (*self._staff.wanted_workers, self._staff.maintenance)
        )

    def _fail(self, line: str) -> None:
        emit("reload_failed", "error", error=line)
        self._end()

    def _end(self) -> None:
        self._stage = _Stage.IDLE
        if self._announced:
            self._announced = False
            self._notifier.ready()  # the old children serve on, or the new ones do
