"""Floor 5: the demo: real jobs on a real PostgreSQL, a worker process killed midway, and the proof
that nothing was lost or done twice. May import enqueue, postgres and below, and its siblings.

In acts: a server and a fresh database; a supervisor; jobs, enqueued in one transaction; a SIGKILL
to the process in the middle of the longest job; a poison that kills its process; the drain; the
verdict. What is counted and proved is asked of the database (demo_checks), the supervisor's log
only tells the story.
"""

import contextlib
import os
import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from reliable_worker.dev import demo_checks, demo_database, demo_statements
from reliable_worker.dev.demo_database import DemoError
from reliable_worker.dev.demo_files import Found, shown, url
from reliable_worker.dev.demo_fleet import Fleet, Json
from reliable_worker.dev.demo_jobs import app
from reliable_worker.dev.demo_report import Report, Story
from reliable_worker.dev.demo_show import Show
from reliable_worker.dev.demo_signals import Interrupts
from reliable_worker.enqueue.batch import enqueue_many
from reliable_worker.enqueue.enqueue import NewJob
from reliable_worker.jobs.deadline import Deadline, boottime
from reliable_worker.postgres.database import Connection

WELCOME, INVALID, FLAKY, POISON = "welcome-1001", "invalid-1002", "flaky-1003", "poison-1004"
STORIES = (WELCOME, INVALID, FLAKY, POISON)

# A supervisor is ready within a second on an idle machine.
READY_SECONDS = 60.0
# The longest job sleeps 8 s: by then the kill comes, however many files there are still.
MIDWAY_SECONDS = 3.0
# A process is seen at work, and a killed one replaced, within a second on an idle machine.
KILL_SECONDS = 60.0
# The longest job sleeps 8 s and runs twice; beyond that, a slow machine does 20 files a second.
SETTLE_SECONDS, FILES_PER_SECOND = 90.0, 20
# How finely recovery is measured, and how soon the supervisor's end is noticed. A look that costs
# more comes more seldom, so that counting thousands of jobs takes a tenth of a core at most.
LOOK_SECONDS = 0.02
PAUSE_PER_COST = 9


@dataclass(frozen=True, slots=True)
class Options:
    """What to work on, the server (None: the embedded one), and the seed of what is random: when
    the kill comes, which files are read once more."""

    found: Found
    database: str | None
    seed: int


def run(options: Options, show: Show) -> Report:
    """Play the demo; everything it started is gone afterwards, however it ends.

    Raises DemoError, SettingsError, psycopg.Error, and KeyboardInterrupt after SIGINT, SIGTERM or
    SIGHUP.
    """
    found = options.found
    report = Report(options.seed, shown(found.root), files=len(found.files), skipped=found.skipped)
    began = boottime()
    with Interrupts() as interrupts, show, contextlib.ExitStack() as stack:
        try:
            server = _server(options, stack, interrupts, show, report)
            interrupts.check()
            database = stack.enter_context(demo_database.fresh(server))
            interrupts.check()
            show.note("made a database of its own, with the schema")
            conn = stack.enter_context(contextlib.closing(demo_database.session(database)))
            fleet = Fleet(database)
            stack.callback(fleet.close)
            _Play(
                options, conn=conn, fleet=fleet, interrupts=interrupts, show=show, report=report
            ).acts()
        except DemoError:
            # A Ctrl-C in the terminal also went to the binaries that start the server.
            interrupts.check()
            raise
    report.seconds = boottime() - began
    return report


def _server(
    options: Options,
    stack: contextlib.ExitStack,
    interrupts: Interrupts,
    show: Show,
    report: Report,
) -> str:
    """The connection string of the server to use."""
    if options.database is not None:
        report.server = "the one of --database"
        return options.database
    show.note("starting the embedded PostgreSQL (its first start takes a few seconds)")
    cluster = stack.enter_context(demo_database.embedded(interrupts.check))
    report.server = f"embedded, on {cluster.host}:{cluster.port}"
    show.note(f"PostgreSQL on {cluster.host}:{cluster.port}, data in {cluster.data_directory}")
    return cluster.dsn()


class _Play:
    """One demo between its supervisor's start and end."""

    def __init__(
        self,
        options: Options,
        *,
        conn: Connection,
        fleet: Fleet,
        interrupts: Interrupts,
        show: Show,
        report: Report,
    ) -> None:
        self._conn = conn
        self._fleet = fleet
        self._interrupts = interrupts
        self._show = show
        self._report = report
        self._random = random.Random(options.seed)
        self._files = {
            f"file-{number:04d}": file for number, file in enumerate(options.found.files, 1)
        }
        self._stories: list[Story] = []
        self._totals: dict[str, Any] = {}
        self._keys: dict[int, str] = {}  # of the jobs enqueued, by id

    def acts(self) -> None:
        """Play all of it."""
        self._wait_until_ready()
        self._enqueue_all()
        self._kill_one()
        self._enqueue([NewJob(kind="demo.poison", payload={}, key=POISON)], "dead", None)
        self._show.note(f"enqueued {POISON}, which kills the process it runs in")
        left = SETTLE_SECONDS + len(self._files) / FILES_PER_SECOND
        self._until(lambda: not self._totals["running"] + self._totals["waiting"], left)
        self._drain()
        self._judge()

    def _wait_until_ready(self) -> None:
        if not self._until(lambda: self._fleet.counts["supervisor_ready"], READY_SECONDS):
            raise DemoError(f"the supervisor was not ready within {READY_SECONDS:.0f} s")

    def _enqueue_all(self) -> None:
        skipped = ", ".join(f"{count} {why}" for why, count in self._report.skipped.items())
        self._show.note(
            f"found {len(self._files)} files in {self._report.path}"
            + (f"; passed over: {skipped}" if skipped else "")
        )
        files = [
            NewJob(kind="demo.file", payload={"url": url(file.path)}, key=key)
            for key, file in self._files.items()
        ]
        # The specification's walkthrough, and a job that fails for a while.
        welcome = NewJob(
            kind="message", payload={"message": "welcome", "sleep_ms": 8000}, key=WELCOME
        )
        invalid = NewJob(kind="message", payload={"sleep_ms": 0}, key=INVALID, max_attempts=3)
        flaky = NewJob(
            kind="demo.flaky", payload={}, key=FLAKY, max_attempts=app.max_attempts("demo.flaky")
        )
        with self._conn.transaction():
            self._enqueue([welcome], "succeeded", "processed_messages")
            self._enqueue([invalid], "dead", None)
            self._enqueue([flaky, *files], "succeeded", "demo_effects")
        self._show.note(f"enqueued {len(files) + 3} jobs in one transaction")

    def _enqueue(self, jobs: Sequence[NewJob], outcome: str, effect: str | None) -> None:
        """Put jobs in and, in the same transaction, write down what must become of them."""
        with self._conn.transaction():
            made = enqueue_many(self._conn, jobs)
            keys = [str(job.key) for job in jobs]
            demo_statements.run(self._conn, "demo_expect", [keys, outcome, effect])
        self._keys |= {each.id: key for each, key in zip(made, keys, strict=True)}

    def _kill_one(self) -> None:
        """SIGKILL to the process in the middle of the longest job, and the time until all it held
        runs again or is done."""
        # Somewhere between a fifth and three fifths of the files.
        due = self._random.uniform(0.2, 0.6) * len(self._files)
        self._until(lambda: self._totals["files_done"] >= due, MIDWAY_SECONDS)
        held: list[tuple[str, int, int]] = []

        def aim() -> bool:
            held[:] = demo_statements.run(self._conn, "demo_held", [WELCOME]).fetchall()
            return bool(held) and self._fleet.pid_of(held[0][0]) is not None

        if not self._until(aim, KILL_SECONDS):
            self._report.violations.append(f"{WELCOME} was never seen running")
            return
        pid = self._fleet.pid_of(held[0][0])
        assert pid is not None
        began = boottime()
        os.kill(pid, signal.SIGKILL)
        self._report.killed_pid, self._report.interrupted_jobs = pid, len(held)
        self._show.note(f"killed worker process {pid} with {len(held)} jobs, by SIGKILL")
        runs = [[job for _, job, _ in held], [fence for _, _, fence in held]]

        def recovered() -> bool:
            (left,) = demo_statements.run(self._conn, "demo_unrecovered", runs).fetchall()[0]
            return not left

        if self._until(recovered, KILL_SECONDS):
            self._report.recovery_seconds = boottime() - began
            seconds = f"{self._report.recovery_seconds:.2f} s later"
            self._show.note(f"{seconds} each of them runs again elsewhere, or is done")
        else:
            self._report.violations.append(
                f"jobs of the killed process not running again within {KILL_SECONDS:.0f} s"
            )

    def _drain(self) -> None:
        report = self._report
        report.drain_exit, report.drain_seconds = self._fleet.drain()
        self._interrupts.check()
        self._hear()
        self._show.note(
            f"drained by SIGTERM in {report.drain_seconds:.2f} s, exit code {report.drain_exit}"
        )
        if report.drain_exit != 0:
            report.violations.append(f"the drain ended with exit code {report.drain_exit}, not 0")

    def _judge(self) -> None:
        """Ask the database, now that nobody writes, what became of everything."""
        report = self._report
        found = demo_checks.violations(self._conn, self._files, self._random)
        found += demo_checks.connections_left(self._conn)
        report.violations += [str(violation) for violation in found]
        self._look()
        totals = self._totals
        for name in ("enqueued", "succeeded", "retried", "effects", "duplicate_effects"):
            setattr(report, name, totals[name])
        report.jobs_per_second = totals["files_per_second"]
        report.stories = self._stories
        for (key,) in demo_statements.run(self._conn, "demo_dead").fetchall():
            report.dead.append(key)
        report.expected_dead = [INVALID, POISON]
        (report.problems,) = demo_statements.run(self._conn, "demo_problems").fetchall()[0]

    def _until(self, condition: Callable[[], object], seconds: float) -> bool:
        """Show how it goes until `condition` is true; False after `seconds`."""
        deadline = Deadline(seconds, "demo")
        while True:
            self._interrupts.check()
            began = boottime()
            self._look()
            if condition():
                return True
            if deadline.passed:
                return False
            cost = boottime() - began
            code = self._fleet.wait(max(LOOK_SECONDS, cost * PAUSE_PER_COST))
            if code is not None:
                raise DemoError(
                    f"the supervisor ended by itself with exit code {code}:"
                    f" {self._fleet.last_words()}"
                )

    def _look(self) -> None:
        self._hear()
        self._totals = demo_statements.row(self._conn, "demo_totals")
        rows = demo_statements.run(self._conn, "demo_look", [list(STORIES)]).fetchall()
        self._stories = [Story(*values) for values in rows]
        if self._keys:
            self._show.update(len(self._files), self._totals, self._stories)

    def _hear(self) -> None:
        for event in self._fleet.take():
            if event["event"] == "child_exited" and event.get("cause") == "crash":
                self._report.crashes += 1
            told = self._tell(event)
            if told is not None:
                self._show.note(told)

    def _tell(self, event: Json) -> str | None:
        """The sentence for an event of the supervisor's log; None: nothing to tell."""
        match event:
            case {"event": "admin_listening", "address": address}:
                self._report.metrics_address = str(address)
                return f"supervisor {self._fleet.pid}; metrics: http://{address}/metrics"
            case {"event": "child_exited", "cause": "crash", "pid": pid, "reason": reason}:
                return f"process {pid} is gone: {reason}"
            case {"event": "child_started", "role": "quarantine", "pid": pid}:
                return f"process {pid} started, in which suspects run alone"
            case {"event": "job_failed", "job_id": int(job)} if self._keys.get(job) in STORIES:
                return self._tell_failure(self._keys[job], event)
        return None

    def _tell_failure(self, key: str, event: Json) -> str:
        error = event.get("error")
        if event.get("outcome") == "dead":
            return f"{key} is dead: {error}"
        if event.get("reason") == "crash":
            did = "killed its process" if key == POISON else "was in the killed process"
            return f"{key} {did}: a suspect now, it runs alone next"
        return f"{key} failed, again in {event.get('retry_seconds', 0):.1f} s: {error}"
