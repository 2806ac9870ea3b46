"""The maintenance process: what keeps the queue true while workers come and go.

On a job's way: beside it. One such process per supervisor takes jobs from holders that are gone
(expire, obituary), buries what cannot run (sweep), counts (census), and wakes who could claim
(waking). Its main thread runs the loop and hears the parent; two threads with a connection each do
the work, so that what frees jobs never waits for what counts them. Several maintenance processes
on one database do not disturb each other. Floor 4. Imports postgres, process and jobs.
"""

from __future__ import annotations

from collections.abc import Callable

from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.errors import describe
from reliable_worker.jobs.events import emit
from reliable_worker.maintenance.census import Census
from reliable_worker.maintenance.eligible import Eligible
from reliable_worker.maintenance.expire import Expire
from reliable_worker.maintenance.holdback import Holdback
from reliable_worker.maintenance.lane import Lane
from reliable_worker.maintenance.marks import Marks
from reliable_worker.maintenance.obituary import Obituaries
from reliable_worker.maintenance.pruner import Pruner
from reliable_worker.maintenance.reaper import Reaper
from reliable_worker.maintenance.runner import Runner
from reliable_worker.maintenance.served import Served
from reliable_worker.maintenance.waking import Waking
from reliable_worker.postgres.marks import SchemaMismatch, check_range
from reliable_worker.process import Child, Loop, Stop

SCHEMA_EXIT = 4

# The parent tells this process to leave when every obituary is acknowledged or their time is over,
# a second before the end of the stop budget: what is still listed then gets half of that.
DRAIN_SECONDS = 0.5
# A thread that waits for the database is left behind: the process ends without it.
_JOIN_SECONDS = 0.2
# So many turns of the loop without a word of the parent mean that its channel, which may hold
# obituaries sent just before the signal, has been read to the end.
_QUIET_TURNS = 2


def main(child: Child) -> int:
    """Run until told to stop; the exit code."""
    return Maintenance(child).run()


class Gate:
    """The first service: nothing is written before the schema was seen to fit the code."""

    name = "schema"

    def __init__(self, opened: Callable[[], None], refused: Callable[[str], None]) -> None:
        self._opened = opened
        self._refused = refused

    def due_at(self) -> float:
        return 0.0

    def run_once(self, lane: Lane) -> int:
        """Look at the schema; tell what came of it."""
        try:
            lane.call(check_range)
        except SchemaMismatch as mismatch:
            self._refused(describe(mismatch))
        else:
            self._opened()
        return 1


class Maintenance:
    """The process's parts, put together."""

    def __init__(self, child: Child) -> None:
        settings = child.settings
        self._child = child
        self._loop = Loop(
            child, on_stop=self._on_stop, on_message=self._on_message, on_tick=self._on_tick
        )
        self._level = Stop.RUN
        self._leave_by = float("inf")
        self._quiet_turns = 0
        self._mismatch: str | None = None
        say = self._loop.send
        marks, holdback = Marks(), Holdback(settings.lease_seconds)
        self._served = Served(settings.queues)
        self._eligible = Eligible(self._served, say)
        self._waking = Waking(settings, self._served, say)
        self._obituaries = Obituaries(settings, marks, freed=self._freed, buried=self._buried)
        # What frees jobs, and what only looks.
        self._freeing = (self._obituaries, Expire(settings, marks, holdback), Reaper(settings))
        looking = (
            self._eligible,
            self._waking,
            Census(settings, marks, say),
            Pruner(settings),
        )

        def lane(name: str) -> Lane:
            contact = child.board.set_contact
            return Lane(name, settings, child.boot, holdback=holdback, contact=contact)

        self._lanes = lane("reaper"), lane("census")
        self._reaper = Runner(self._lanes[0], [Gate(self._opened, self._refused)])
        self._census = Runner(self._lanes[1], looking)

    def run(self) -> int:
        """The main thread's way through the process's life."""
        self._reaper.start()
        self._loop.send({"say": "ready", "kinds": []})
        self._loop.run(self._done)
        for runner in (self._reaper, self._census):
            runner.stop()
        if self._level < Stop.ORPHANED:
            for runner in (self._reaper, self._census):
                if runner.is_alive():
                    runner.join(_JOIN_SECONDS)
        return SCHEMA_EXIT if self._mismatch else 0

    # -- called in the loop's thread ------------------------------------------------------------

    def _on_stop(self, level: Stop) -> None:
        self._level = level
        self._quiet_turns = 0
        self._leave_by = min(self._leave_by, boottime() + DRAIN_SECONDS)
        self._census.stop()
        self._reaper.serve([self._obituaries])
        self._loop.wake()

    def _on_message(self, message: dict[str, object]) -> None:
        self._quiet_turns = 0
        try:
            self._hear(message)
        except (TypeError, ValueError) as error:
            # One garbled message must not end the process that every other one counts on.
            emit("reaper_failed", "error", service="messages", error=describe(error))

    def _hear(self, message: dict[str, object]) -> None:
        match message.get("say"):
            case "obituary":
                self._obituaries.add(message)
                self._reaper.wake()
            case "kinds":
                kinds = message.get("kinds")
                self._served.set_kinds(kinds if isinstance(kinds, list) else [])
                self._census.wake()
            case "eligible":
                self._eligible.ask(message)
                self._census.wake()

    def _on_tick(self) -> None:
        self._quiet_turns += 1
        for lane in self._lanes:
            gauge = ("pool_connections", (lane.name, "open"))
            self._child.meters.gauge(*gauge, float(lane.connected))

    def _done(self) -> bool:
        if self._mismatch or self._level is Stop.ORPHANED:
            return True
        if self._level is Stop.RUN or self._quiet_turns < _QUIET_TURNS:
            return False
        # A successor, if there is one, is sent every obituary again.
        nothing_left = self._level is Stop.RETIRE or not self._obituaries.pending()
        return nothing_left or boottime() >= self._leave_by

    # -- called in the reaper's thread ----------------------------------------------------------

    def _opened(self) -> None:
        self._child.board.set_ready()
        if self._level is Stop.RUN:
            self._reaper.serve(self._freeing)
            self._census.start()

    def _refused(self, line: str) -> None:
        self._loop.send({"say": "failed", "exit": SCHEMA_EXIT, "line": line})
        self._mismatch = line
        self._reaper.stop()
        self._loop.wake()

    def _freed(self) -> None:
        self._waking.hurry()
        self._census.wake()

    def _buried(self, boot: str) -> None:
        self._loop.send({"say": "buried", "boot": boot})
        self._loop.wake()
