"""The parent: one thread, one loop; it holds no job, no lease, no connection, no user code.

Floor 5; imports process, jobs, settings and this floor, never postgres, worker or maintenance: the
children's mains are handed in by `cli`. Each turn of the loop hears signals, children and HTTP
clients, then asks each of its few parts, in a fixed order, what is to be done now.
"""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Callable, Mapping

from reliable_worker import logs
from reliable_worker.jobs import meters
from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.events import emit
from reliable_worker.process import ChildMain, Role
from reliable_worker.settings import Settings
from reliable_worker.supervisor import health
from reliable_worker.supervisor.admin import Admin
from reliable_worker.supervisor.child import Failure, Process, reap_strangers
from reliable_worker.supervisor.eligible import Eligibility
from reliable_worker.supervisor.fork import InChild, Registry
from reliable_worker.supervisor.ladder import Ladder
from reliable_worker.supervisor.obituary import (
    Obituaries,
    Obituary,
    cause_of,
    describe_death,
    describe_exit,
)
from reliable_worker.supervisor.pace import START_BUDGET, StartBudget
from reliable_worker.supervisor.reload import Reload
from reliable_worker.supervisor.signals import Signals
from reliable_worker.supervisor.staff import Place, Staff
from reliable_worker.supervisor.systemd import Notifier
from reliable_worker.supervisor.watch import GAP_SECONDS, Cause, verdict

_TURN_SECONDS = 0.2
# Exit codes of a child that no restart can mend: a bad setting, a schema it does not work with.
_HOPELESS = (2, 4)


class Supervisor:
    """A run, from the first fork to the last reaping."""

    def __init__(
        self,
        settings: Settings,
        mains: Mapping[Role, ChildMain],
        *,
        signals: Signals,
        reload: Callable[[], Settings] | None = None,
        notifier: Notifier | None = None,
        once: bool = False,
        drain: bool = False,
    ) -> None:
        """`mains`: what a child of each role runs. `reload`: reads the settings again for SIGHUP
        (None: the settings as they are, so that SIGHUP only imports the application afresh)."""
        self._signals = signals
        self._notifier = notifier or Notifier()
        self._once = once
        self._drain = drain
        self._selector = selectors.PollSelector()
        self._selector.register(signals, selectors.EVENT_READ)
        self._registry = Registry()
        self._registry.add(signals)
        self._registry.add(self._notifier)
        self.staff = Staff(
            settings,
            mains,
            once=once,
            drain=drain,
            registry=self._registry,
            selector=self._selector,
            on_message=self._hear,
            on_death=self._mourn,
        )
        self._reload = Reload(self.staff, reload or (lambda: settings), self._notifier)
        self._obituaries = Obituaries()
        self._budget = StartBudget()
        self._eligibility = Eligibility()
        self._ladder: Ladder | None = None
        self._admin: Admin | None = None
        self._suspects = 0
        self._was_ready = False
        self._turned_at = self._watched_since = boottime()
        self._on_census: Callable[[Mapping[str, object]], None] = lambda message: None
        self.failure: Failure | None = None  # why the run was given up

    def run(
        self,
        admin: Admin | None = None,
        on_census: Callable[[Mapping[str, object]], None] | None = None,
    ) -> int:
        """Fork, watch and replace until told to stop; the exit code. `admin` is served meanwhile,
        `on_census` is handed maintenance's counts of the queues.

        Only one per process, in its main thread, before any other thread exists.
        """
        meters.attach(self.staff.arena.parent())
        if admin is not None:
            self._admin = admin
            self._registry.add(InChild(admin.close_in_child))
            admin.register(self._selector)
        if on_census is not None:
            self._on_census = on_census
        emit("supervisor_started", pid=os.getpid())
        while (ladder := self._turn()) is None:
            pass
        duration = round(boottime() - ladder.began_at, 3)
        emit("shutdown_complete", duration_seconds=duration, killed=ladder.killed)
        if admin is not None:
            admin.close()
        if self.failure is not None:
            return self.failure.code
        return 1 if ladder.killed else 0

    def readiness(self) -> tuple[bool, Mapping[str, object]]:
        """For /readyz: 200 only while jobs can run."""
        return health.readiness(
            self.staff, boottime(), was_ready=self._was_ready, draining=self._ladder is not None
        )

    # -- one turn -------------------------------------------------------------------------------

    def _turn(self) -> Ladder | None:
        """One turn of the loop; the drain when everybody has left."""
        logs.watch(self._selector)
        ready = self._selector.select(self._patience())
        logs.pump()
        for key, mask in ready:
            if self._admin is not None and key.data is self._admin:
                self._admin.handle(key, mask, boottime())
        now = boottime()
        if now - self._turned_at > GAP_SECONDS:
            self._watched_since = now  # we were stopped: nobody else's silence counts
        self._turned_at = now
        if self._admin is not None:
            self._admin.expire(now)
        for number in self._signals.take():
            self._answer(number, now)
        self.staff.turn()
        if os.getpid() == 1:
            reap_strangers({process.pid for process in self.staff.processes})
        ladder = self._ladder
        if ladder is not None:
            if ladder.turn(now):
                return ladder
        else:
            self._watch(now)
            self._reload.turn(self._was_ready)
            self._ask_eligible(now)
        self._fill(now)
        self._tell(now)
        return None

    def _patience(self) -> float:
        now = boottime()
        due = [now + _TURN_SECONDS]
        due += [
            place.due_at
            for place in self.staff.places
            if place.process is None and self._wanted(place, now)
        ]
        if self._admin is not None and (deadline := self._admin.next_deadline()) is not None:
            due.append(deadline)
        return max(0.0, min(due) - now)

    def _answer(self, number: int, now: float) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self._stop(signal.Signals(number).name, now)
        elif number == signal.SIGQUIT:
            self._stop("SIGQUIT", now)
            self.failure = Failure(1, "ended at once by SIGQUIT, all children killed")
            for process in self.staff.processes:
                process.handle.signal(signal.SIGKILL)
            # Nobody is left to bury the dead: a drain whose time is over.
            self._ladder = Ladder(self.staff, Obituaries(), now, 0.0)
        elif number == signal.SIGHUP and self._ladder is None:
            self._reload.ask()

    def _stop(self, reason: str, now: float) -> None:
        """Begin the drain. A second reason changes nothing."""
        if self._ladder is not None:
            return
        emit("shutdown_started", reason=reason)
        self._notifier.stopping()
        # Where nobody could start to work, there are no rows to free.
        hopeless = self.failure is not None and self.failure.code in _HOPELESS
        obituaries = Obituaries() if hopeless else self._obituaries
        self._ladder = Ladder(self.staff, obituaries, now, self.staff.settings.stop_seconds)

    def _give_up(self, failure: Failure) -> None:
        if self.failure is None:
            self.failure = failure
        self._stop("failed", boottime())

    def _watch(self, now: float) -> None:
        """Kill who is stalled or stuck."""
        for process in self.staff.processes:
            process.finish_kill(now)
            if process.killed_for is not None:
                continue
            cause = verdict(process.facts(now, self._watched_since), process.settings)
            if cause is not None:
                emit(
                    "child_killed",
                    "error",
                    role=str(process.role),
                    pid=process.pid,
                    cause=str(cause),
                )
                process.kill(cause, now)

    def _fill(self, now: float) -> None:
        """Fork for every place that should be filled and may be."""
        for place in self.staff.places:
            if place.process is None and now >= place.due_at and self._wanted(place, now):
                try:
                    process = self.staff.hire(place)
                except OSError as error:
                    self._hire_failed(place, error, now)
                    continue
                if place.role is Role.MAINTENANCE:
                    self._brief(process)

    def _hire_failed(self, place: Place, error: OSError, now: float) -> None:
        """No process to be had: the machine's trouble, tried again like a death before ready."""
        line = f"cannot fork a {place.role} process: {error.strerror}"
        emit("fork_failed", "error", role=str(place.role), error=line)
        place.due_at = now + place.pace.died(0.0)
        if self._ladder is None and self._budget.died(place.role) and not self._was_ready:
            self._give_up(Failure(1, line))

    def _wanted(self, place: Place, now: float) -> bool:
        if self._ladder is not None:
            return place.role is Role.MAINTENANCE and self._ladder.needs_maintenance(now)
        if place.role is Role.WORKER:
            return place in self.staff.wanted_workers
        if place.role is Role.QUARANTINE:
            return not self._once and self._room_for_suspects()
        return place.role is Role.MAINTENANCE

    def _room_for_suspects(self) -> bool:
        """Those in work run other suspects than the ones that were counted ready."""
        living = [p.process for p in self.staff.quarantine if p.process is not None]
        busy = sum(process.board.held > 0 for process in living)
        return len(living) < min(self.staff.settings.processes, self._suspects + busy)

    def _tell(self, now: float) -> None:
        """Tell systemd how it goes."""
        draining = self._ladder is not None
        if not self._was_ready and not draining:
            self._notifier.extend(now)
            if self.staff.serving():
                self._was_ready = True
                emit("supervisor_ready")
                self._notifier.ready()
        line = health.status_line(self.staff, now, was_ready=self._was_ready, draining=draining)
        self._notifier.status(line, now)
        if health.feedable(self.staff.processes, now, self._watched_since):
            self._notifier.feed(now)

    # -- what children say ----------------------------------------------------------------------

    def _hear(self, process: Process, message: dict[str, object]) -> None:
        match message:
            case {"say": "ready"}:
                kinds = message.get("kinds")
                process.kinds = tuple(map(str, kinds)) if isinstance(kinds, list) else ()
                if not process.ready:
                    process.ready = True
                    self._budget.ready(process.role)
                    emit("child_ready", role=str(process.role), pid=process.pid)
                self._tell_kinds()
            case {"say": "failed", "exit": int(code), "line": str(line)}:
                process.failure = Failure(code, line)
            case {"say": "suspects", "count": int(count)}:
                self._suspects = count
            case {"say": "buried", "boot": str(boot)}:
                self._obituaries.buried(boot)
            case {"say": "census"}:
                self._on_census(message)
            case {"say": "eligible", "ask": number, "count": count}:
                if self._eligibility.answer(number, count, self._hands()):
                    self._stop("drained", boottime())

    def _tell_maintenance(self, message: Mapping[str, object]) -> None:
        process = self.staff.maintenance.process
        if process is not None:
            process.channel.send(message)

    def _tell_kinds(self) -> None:
        kinds = {kind for process in self.staff.crew for kind in process.kinds}
        self._tell_maintenance({"say": "kinds", "kinds": sorted(kinds)})

    def _brief(self, maintenance: Process) -> None:
        """Tell a new maintenance process what its predecessor knew."""
        self._tell_kinds()
        for obituary in self._obituaries:
            maintenance.channel.send(obituary.message())

    def _hands(self) -> list[tuple[str, int, int]]:
        crew = self.staff.crew
        return [(process.boot, process.board.held, process.board.moves) for process in crew]

    def _ask_eligible(self, now: float) -> None:
        # Kinds are complete only when every worker is ready; the dead's rows only when freed.
        if not self._drain or not self.staff.serving() or self._obituaries.urgent:
            return
        number = self._eligibility.question(self._hands(), now)
        if number is not None:
            self._tell_maintenance({"say": "eligible", "ask": number})

    # -- deaths ---------------------------------------------------------------------------------

    def _mourn(self, place: Place, process: Process, code: int) -> None:
        """A child was reaped: tell maintenance, decide what becomes of its place."""
        started = process.board.started()
        cause = cause_of(
            code,
            killed_for=process.killed_for,
            ready=process.ready,
            draining=process.draining,
            started=bool(started),
        )
        self._report(process, code, cause)
        if place.role is Role.TRIAL:
            self._reload.trial_ended(process, code)
            return
        if place.role is not Role.MAINTENANCE:
            obituary = Obituary(
                boot=process.boot,
                role=process.role,
                cause=cause,
                error=describe_death(code, cause),
                started=tuple(started),
                stuck=tuple(process.board.stuck()),
                contact=process.board.contact > 0,
            )
            self._obituaries.add(obituary)
            self._tell_maintenance(obituary.message())
        now = boottime()
        place.reason = "reload" if process.retiring and cause is Cause.EXIT else str(cause)
        if not process.retiring:  # one that leaves unasked, however politely, may do so again
            place.due_at = now + place.pace.died(now - process.born_at)
        if self._ladder is None:
            self._judge(place, process, code)

    def _report(self, process: Process, code: int, cause: Cause) -> None:
        emit(
            "child_exited",
            "error" if cause in (Cause.CRASH, Cause.STALL) else "info",
            role=str(process.role),
            pid=process.pid,
            boot=process.boot,
            cause=str(cause),
            reason=describe_exit(code),
        )

    def _judge(self, place: Place, process: Process, code: int) -> None:
        """Whether this death ends the run."""
        failure = process.failure
        if failure is not None and failure.code in _HOPELESS and not self._was_ready:
            self._give_up(failure)
        elif not process.ready:
            others = any(
                other.process is not None and other.process.ready
                for other in self.staff.places
                if other.role is place.role
            )
            if self._budget.died(process.role) and not (self._was_ready and others):
                line = f"{START_BUDGET} {process.role} processes died at their start, the last "
                line += f"{describe_exit(code)}"
                self._give_up(Failure(1, failure.line if failure else line))
        elif self._once and place.role is Role.WORKER:
            self._stop("once", boottime())
