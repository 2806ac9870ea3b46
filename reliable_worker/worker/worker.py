"""One worker process: its parts, put together, and its way from start to stop.

Floor 3, what the supervisor's child runs. The main thread turns `process.Loop` (beats, signals,
the parent's end) and never touches the database; producer, slots, heartbeats, finisher and
listener are threads. Quarantine processes are the same with one slot and suspects to claim.
"""

from __future__ import annotations

from collections.abc import Mapping

import psycopg

from reliable_worker.enqueue.app import Handler
from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.errors import ReliableWorkerError, describe
from reliable_worker.jobs.events import emit
from reliable_worker.jobs.outcome import Policy
from reliable_worker.jobs.retry import Backoff
from reliable_worker.postgres.database import check_dsn, make_pool
from reliable_worker.process import Child, Loop, Role, Stop
from reliable_worker.settings import Settings
from reliable_worker.worker.control import Control
from reliable_worker.worker.finish import Finisher
from reliable_worker.worker.listener import Listener
from reliable_worker.worker.places import Places
from reliable_worker.worker.presence import Presence
from reliable_worker.worker.producer import Producer
from reliable_worker.worker.registry import load_handlers
from reliable_worker.worker.renewal import LeaseBook
from reliable_worker.worker.shared import Shared
from reliable_worker.worker.slots import Slots

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_SCHEMA = 4

# An orphan has 1 s to give its jobs back; the alarm in `process` ends it after 2.
_ORPHAN_SECONDS = 1.5


def main(child: Child) -> int:
    """Run a worker or quarantine process (or try its set-up, role TRIAL); the exit code."""
    loop_words = _Words(child)
    settings: Settings = child.settings
    try:
        check_dsn(settings.database_url)
    except ReliableWorkerError as error:
        return loop_words.failed(EXIT_USAGE, str(error))
    try:
        handlers = load_handlers(settings)
    except ReliableWorkerError as error:
        return loop_words.failed(EXIT_FAILED, str(error))
    if child.role is Role.TRIAL:
        return loop_words.ready(handlers)
    worker = Worker(child, handlers)
    try:
        worker.start()
    except RuntimeError as error:  # the system allows no more threads
        return loop_words.failed(EXIT_FAILED, f"cannot start the worker's threads: {error}")
    return worker.run()


class _Words:
    """What a child says to its parent before its loop turns."""

    def __init__(self, child: Child) -> None:
        self._loop = Loop(child, on_stop=lambda level: None, on_message=lambda message: None)

    def failed(self, code: int, line: str) -> int:
        self._loop.send({"say": "failed", "exit": code, "line": line})
        return code

    def ready(self, handlers: Mapping[str, Handler]) -> int:
        self._loop.send({"say": "ready", "kinds": sorted(handlers)})
        return EXIT_DONE


class Worker:
    """The parts of one process and the order in which they start and stop."""

    def __init__(self, child: Child, handlers: Mapping[str, Handler]) -> None:
        settings: Settings = child.settings
        self._child = child
        self._handlers = handlers
        self._stopped_at: float | None = None
        self._cancelled = False
        quarantine = child.role is Role.QUARANTINE
        control = Control(settings, child.boot, child.board)
        self._shared = shared = Shared(
            settings=settings,
            boot=child.boot,
            board=child.board,
            policy=policy(settings),
            control=control,
            book=LeaseBook(settings, control, child.board),
            pool=make_pool(settings, lane="work", boot=child.boot, size=child.slots),
        )
        shared.finisher = self._finisher = Finisher(shared)
        self._slots = Slots(shared, child.slots, handlers, on_free=self._on_free)
        self._producer = Producer(
            shared,
            self._slots,
            Places(settings.queues, handlers, suspects=quarantine),
            Presence(shared, child.role.value, child.slots, handlers),
            suspects=quarantine,
            once=child.once,
        )
        self._finisher.on_room = self._producer.wake
        self._listener = Listener(settings, child.boot, self._producer.notified)
        self._loop = Loop(
            child, on_stop=self._on_stop, on_message=lambda message: None, on_tick=self._on_tick
        )
        shared.on_stuck = self._retire

    def start(self) -> None:
        """Start every thread, heartbeats before anything can be claimed."""
        self._shared.pool.open()
        self._finisher.thread.start()
        self._slots.start()
        self._listener.thread.start()
        self._producer.thread.start()
        self._loop.send({"say": "ready", "kinds": sorted(self._handlers)})

    def run(self) -> int:
        """Turn the loop until there is nothing left to do; the exit code."""
        self._loop.run(self._done)
        failure = self._producer.failure
        self._close()
        if failure is not None:
            self._loop.send({"say": "failed", "exit": EXIT_SCHEMA, "line": str(failure)})
            return EXIT_SCHEMA
        return EXIT_DONE

    def _close(self) -> None:
        self._slots.close()
        self._listener.close()
        self._finisher.close()
        seconds = self._shared.settings.release_timeout_seconds
        self._finisher.thread.join(seconds)
        self._shared.control.close()
        try:
            self._shared.pool.close(timeout=1.0)  # its threads end at once unless connecting
        except psycopg.Error as error:
            emit("failure_update_failed", "warning", error=describe(error), count=0)

    # -- in the main loop -----------------------------------------------------------------------

    def _on_stop(self, level: Stop) -> None:
        self._shared.stop = level
        self._producer.stop()
        self._producer.give_back(self._slots.take_back())
        if level >= Stop.DRAIN:
            self._stopped_at = boottime()
        if level is Stop.ORPHANED:
            self._cancel()

    def _retire(self) -> None:
        """Claim no more and leave when the other jobs have ended: a thread here is stuck."""
        self._producer.stop()
        self._loop.wake()

    def _on_tick(self) -> None:
        now = boottime()
        self._shared.book.show()
        for execution in self._slots.executions():
            execution.watch(now)
        settings = self._shared.settings
        stopped_at = self._stopped_at
        if stopped_at is not None and now >= stopped_at + settings.drain_grace_seconds:
            self._cancel()
        idle = 0.0 if self._slots.busy else now - self._producer.worked_at
        if self._child.role is Role.QUARANTINE and idle >= settings.quarantine_idle_seconds:
            self._producer.stop()
        self._show_pool()

    def _cancel(self) -> None:
        """Ask every handler to stop; those that begin later are asked at the next tick."""
        for execution in self._slots.executions():
            execution.job.lease.drain()

    def _on_free(self) -> None:
        self._producer.wake()
        if self._producer.stopped:
            self._loop.wake()

    def _done(self) -> bool:
        """Whether nothing is left: or the drain's time is over and only the database is missing."""
        if not self._producer.stopped:
            return False
        self._producer.give_back(self._slots.take_back())  # given in the very moment of the stop
        if self._slots.busy:
            return False
        return not self._finisher.backlog or self._out_of_time()

    def _out_of_time(self) -> bool:
        if self._stopped_at is None:
            return False
        settings = self._shared.settings
        seconds = (
            settings.claim_timeout_seconds
            + settings.drain_grace_seconds
            + settings.release_timeout_seconds
        )
        if self._shared.stop is Stop.ORPHANED:
            seconds = min(seconds, _ORPHAN_SECONDS)
        return boottime() >= self._stopped_at + seconds

    def _show_pool(self) -> None:
        stats = self._shared.pool.get_stats()
        size, idle = stats.get("pool_size", 0), stats.get("pool_available", 0)
        gauge = self._child.meters.gauge
        gauge("pool_connections", ("work", "idle"), float(idle))
        gauge("pool_connections", ("work", "used"), float(size - idle))
        connected = 1.0 if self._shared.control.backend is not None else 0.0
        gauge("pool_connections", ("control", "open"), connected)
        listening = 1.0 if self._listener.up else 0.0
        gauge("pool_connections", ("listen", "open"), listening)
        gauge("listeners_up", (), listening)


def policy(settings: Settings) -> Policy:
    """The limits `decide` works with."""
    backoff = Backoff(
        settings.retry_base_seconds, settings.retry_max_seconds, settings.retry_jitter
    )
    return Policy(backoff, settings.max_refunds, settings.max_snoozes)
