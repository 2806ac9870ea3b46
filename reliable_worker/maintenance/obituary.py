"""Obituaries: free what a dead process held, by what is known of its end.

On a job's way: running → ready or dead, where the parent saw the holder's process end. An obituary
lists the runs that had started there; every row still running under the process's boot id is freed:
started ones by the cause, all others with their attempt given back. A claim may commit after its
process died, so an obituary stays listed until a pass begun after the last of its server processes
was gone leaves nothing; rows that are locked wait for the next pass.

Obituaries live in memory: while the database is away they wait, and the parent sends them again to
this process's successor until they are acknowledged. Floor 4. Imports postgres and jobs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.errors import clean
from reliable_worker.jobs.events import emit
from reliable_worker.jobs.failpoints import reach
from reliable_worker.jobs.retry import Backoff
from reliable_worker.maintenance.lane import Lane
from reliable_worker.maintenance.marks import Marks
from reliable_worker.postgres import upkeep
from reliable_worker.settings import Settings

REPEAT_SECONDS = 0.1

# Causes that are the started jobs' own doing; "timeout" is the stuck ones' alone, and what a drain
# or a clean exit interrupts is nobody's.
_CRASHES = frozenset({"crash", "stall"})
_KILLERS = _CRASHES | {"timeout"}


@dataclass(slots=True)
class Obituary:
    """What the parent said of a dead process, and what came of it so far."""

    boot: str
    cause: str
    error: str
    started: tuple[upkeep.Run, ...]
    stuck: tuple[upkeep.Run, ...]
    floor: float  # no row of this process was claimed below
    freed: int = 0
    dead: int = 0

    def verdicts(self) -> tuple[list[upkeep.Run], list[upkeep.Run]]:
        """The runs that count as crashed, and those that count as timed out."""
        stuck = list(self.stuck) if self.cause in _KILLERS else []
        crashed = [run for run in self.started if run not in stuck]
        return (crashed if self.cause in _CRASHES else []), stuck


class Obituaries:
    """The service `obituary`: the listed obituaries, thread-safe to add to."""

    name = "obituary"

    def __init__(
        self,
        settings: Settings,
        marks: Marks,
        *,
        freed: Callable[[], None],
        buried: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._marks = marks
        self._freed = freed  # told after a pass that made jobs ready
        self._buried = buried  # told each boot id that is done
        self._backoff = Backoff(
            settings.retry_base_seconds, settings.retry_max_seconds, settings.retry_jitter
        )
        self._lock = threading.Lock()
        self._listed: dict[str, Obituary] = {}
        self._due_at = 0.0

    def add(self, message: Mapping[str, object]) -> None:
        """List an obituary as the parent sent it; one already listed stays as it is.

        Raises ValueError for a message that is none.
        """
        boot = str(message.get("boot", ""))
        if not boot:
            raise ValueError("an obituary without a boot id")
        obituary = Obituary(
            boot=boot,
            cause=str(message.get("cause", "exit")),
            error=str(message.get("error", "")),
            started=_runs(message.get("started")),
            stuck=_runs(message.get("stuck")),
            floor=self._marks.floor,
        )
        with self._lock:
            self._listed.setdefault(boot, obituary)
            self._due_at = 0.0

    def pending(self) -> int:
        """How many obituaries are not done."""
        with self._lock:
            return len(self._listed)

    def due_at(self) -> float:
        with self._lock:
            return self._due_at if self._listed else float("inf")

    def run_once(self, lane: Lane) -> int:
        """One pass over the listed obituaries; how many jobs were freed."""
        with self._lock:
            listed = list(self._listed.values())
            self._due_at = boottime() + REPEAT_SECONDS
        if not listed:
            return 0
        reach("in_obituary")
        alive = lane.call(
            partial(
                upkeep.backends,
                boots=[obituary.boot for obituary in listed],
                idle_seconds=self._settings.lease_seconds,
            )
        )
        freed = 0
        for obituary in listed:
            before = obituary.freed
            try:
                left = self._free(obituary, lane)
            except Exception:
                # Whatever is wrong with this one's rows must not keep the others waiting.
                with self._lock:
                    self._listed[obituary.boot] = self._listed.pop(obituary.boot)
                raise
            freed += obituary.freed - before
            if left == 0 and obituary.boot not in alive:
                self._bury(obituary)
        if freed:
            self._freed()
        return freed

    def _free(self, obituary: Obituary, lane: Lane) -> int:
        """Free what can be locked; how many rows are left."""
        obituary.floor = floor = min(obituary.floor, self._marks.floor)
        boot = obituary.boot
        crashed, stuck = obituary.verdicts()
        if crashed:
            error = clean(f"the process running this job died: {obituary.error}")
            limit = self._settings.max_crashes
            jobs = lane.call(lambda conn: upkeep.obituary_crash(conn, boot, crashed, limit, error))
            self._failed(obituary, jobs, "crash", error)
        if stuck:
            error = clean(
                "timed out: its thread was stuck and ignored the cancellation; "
                f"its process was ended: {obituary.error}"
            )
            jobs = lane.call(
                lambda conn: upkeep.obituary_timeout(conn, boot, stuck, error, self._backoff)
            )
            self._failed(obituary, jobs, "timeout", error)
        judged = crashed + stuck
        jobs = lane.call(lambda conn: upkeep.obituary_refund(conn, boot, judged, floor))
        self._released(obituary, jobs)
        return lane.call(lambda conn: upkeep.obituary_left(conn, boot, floor))

    def _failed(
        self, obituary: Obituary, jobs: list[upkeep.Taken], reason: str, error: str
    ) -> None:
        obituary.freed += len(jobs)
        for job in jobs:
            obituary.dead += job.dead
            if job.dead and reason == "crash":
                emit(
                    "suspect_dead",
                    "error",
                    job_id=job.job_id,
                    kind=job.kind,
                    queue=job.queue,
                    error=error,
                )
            emit(
                "job_failed",
                "warning",
                job_id=job.job_id,
                attempt=job.attempt,
                owner=job.owner,
                kind=job.kind,
                queue=job.queue,
                error=error,
                reason=reason,
                outcome="dead" if job.dead else "retried",
            )

    def _released(self, obituary: Obituary, jobs: list[upkeep.Taken]) -> None:
        obituary.freed += len(jobs)
        started = {job_id for job_id, _ in obituary.started}
        for job in jobs:
            interrupted = "drain" if obituary.cause == "drain" else "stuck"
            emit(
                "job_released",
                job_id=job.job_id,
                attempt=job.attempt,
                owner=job.owner,
                kind=job.kind,
                queue=job.queue,
                reason=interrupted if job.job_id in started else "unstarted",
            )

    def _bury(self, obituary: Obituary) -> None:
        with self._lock:
            del self._listed[obituary.boot]
        emit(
            "obituary",
            "warning" if obituary.cause in _KILLERS else "info",
            boot=obituary.boot,
            cause=obituary.cause,
            freed=obituary.freed,
            dead=obituary.dead,
        )
        self._buried(obituary.boot)


def _runs(pairs: object) -> tuple[upkeep.Run, ...]:
    """[[id, fence], …] of a message; raises ValueError for anything else."""
    if pairs is None:
        return ()
    if not isinstance(pairs, list):
        raise ValueError("an obituary's runs are a list of [id, fence]")
    return tuple((int(job_id), int(fence)) for job_id, fence in pairs)
