"""One run of one job: decode, call the handler, decide, hand on.

Floor 3, the heart of the way: claim → **run** → complete | retry | dead | release. The handler
runs here without a transaction; what becomes of the job is decided by `jobs.outcome.decide` and
carried out by the finisher, so that the slot is free as soon as the handler has returned.
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass, field

import psycopg

from reliable_worker.enqueue.app import Handler
from reliable_worker.jobs import failpoints
from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.errors import Cancelled, JobTimeout, LeaseLost, describe
from reliable_worker.jobs.events import emit
from reliable_worker.jobs.job import ClaimedJob
from reliable_worker.jobs.outcome import Abandon, Complete, Ending, decide
from reliable_worker.logs.about import about
from reliable_worker.postgres.database import Fault, classify
from reliable_worker.worker.context import FORKED_COPY_EXIT, JobContext
from reliable_worker.worker.finish import Finished
from reliable_worker.worker.shared import Shared

# How many frames of a stuck thread are logged: enough to see where it hangs.
_STACK_FRAMES = 12


@dataclass(slots=True)
class Execution:
    """The run of `job` in slot `slot`."""

    shared: Shared
    handler: Handler
    job: ClaimedJob
    slot: int
    thread: threading.Thread
    started_at: float = field(default_factory=boottime)
    timeout_seconds: float = 0.0
    stuck: bool = False
    ended: bool = False
    context: JobContext | None = None

    def __post_init__(self) -> None:
        own = self.handler.timeout_seconds
        self.timeout_seconds = self.shared.settings.job_timeout_seconds if own is None else own

    # -- in the slot's worker thread ------------------------------------------------------------

    def run(self) -> None:
        """Run the job to its end. Never raises: the thread and its slot go on."""
        pid = os.getpid()
        error = self._call()
        if os.getpid() != pid:
            os._exit(FORKED_COPY_EXIT)
        context = self.context
        if context is not None:
            context.close(self.shared.settings.finish_timeout_seconds)
        self.ended = True
        duration = boottime() - self.started_at
        if context is not None and context.finished:
            self._after_commit(error, duration)
            return
        if context is not None and context.unknown:
            # Nothing is written and nothing renewed: the database or the lease's end decides.
            self.shared.book.drop(self.job.lease)
            emit(
                "job_abandoned",
                "warning",
                reason="unknown",
                duration_seconds=duration,
                **self.job.facts(),
            )
            return
        self._conclude(error, duration)

    def _call(self) -> BaseException | None:
        """Decode and run the handler; what it raised, if anything."""
        job = self.job
        emit("job_started", "debug", wait_seconds=job.wait_seconds, **job.facts())
        try:
            failpoints.reach("before_dispatch")
            payload = self.handler.decode(job.payload_text)
            deadline = self.started_at + self.timeout_seconds
            self.context = JobContext(self.shared, job, payload, deadline)
            with about(job.facts()):
                self.handler.function(self.context)
            failpoints.reach("after_handler")
        except BaseException as error:  # SystemExit and the like must not end the slot's thread
            return error
        return None

    def _conclude(self, error: BaseException | None, duration: float) -> None:
        job, context = self.job, self.context
        fault = context.fault if context is not None else False
        ending = Ending(
            error=error,
            text="" if error is None else describe(error, job.secrets()),
            infrastructure=error is not None and _is_infrastructure(error, fault),
            stop=self.shared.stop_word(),
        )
        outcome = decide(job, ending, self.shared.policy)
        if isinstance(error, LeaseLost) and not (job.lease.lost or job.lease.overdue):
            # The finishing transaction found the row taken: nothing of this run may be written.
            outcome = Abandon()
        if isinstance(outcome, Abandon):
            self.shared.book.drop(job.lease)
            emit(
                "job_abandoned",
                "warning",
                reason=outcome.reason,
                duration_seconds=duration,
                **job.facts(),
            )
            return
        effects = context.effects if context is not None and isinstance(outcome, Complete) else []
        self.shared.finisher.submit(Finished(job, outcome, effects, duration))

    def _after_commit(self, error: BaseException | None, duration: float) -> None:
        """The job's own transaction committed; what came after cannot undo that."""
        if error is not None:
            text = describe(error, self.job.secrets())
            emit("error_after_commit", "warning", error=text, **self.job.facts())
        committed = self.context.committed if self.context is not None else {}
        emit("job_succeeded", duration_seconds=duration, **committed, **self.job.facts())

    # -- in the heartbeat thread and the main loop ----------------------------------------------

    def next_look_seconds(self, now: float) -> float:
        """Until something about this job changes by time alone."""
        lease = self.job.lease
        times = [self.started_at + self.timeout_seconds, lease.until]
        if lease.cancellation.at is not None:
            times = [lease.cancellation.at + self.shared.settings.stuck_grace_seconds]
        ahead = [at - now for at in times if at > now]
        return min(ahead, default=1.0)

    def watch(self, now: float) -> None:
        """Cancel by time: local deadline, timeout; then notice a thread that does not heed."""
        if self.ended or (self.context is not None and self.context.resolving):
            return  # nothing to cancel: between a COMMIT and the knowledge of what it did
        lease = self.job.lease
        if now >= lease.until and lease.expire():
            emit("lease_lost", "warning", reason="deadline", **self.job.facts())
        if now >= self.started_at + self.timeout_seconds:
            lease.timeout(self.timeout_seconds)
        since = lease.cancellation.at
        grace = self.shared.settings.stuck_grace_seconds
        if since is not None and now >= since + grace and not self.stuck:
            self.stuck = True
            self.shared.board.mark_stuck(self.slot)
            emit("thread_stuck", "error", stack=self._stack(), **self.job.facts())
            self.shared.on_stuck()

    def interrupt(self) -> None:
        """Cancel the statement the handler's transaction is running, once its time is over.

        Not for a drain: a finishing transaction may commit, its own budget is shorter.
        """
        context = self.context
        reason = self.job.lease.cancellation.reason
        if context is not None and isinstance(reason, JobTimeout | LeaseLost):
            context.interrupt()

    def _stack(self) -> str:
        frame = sys._current_frames().get(self.thread.ident or 0)
        names: list[str] = []
        while frame is not None and len(names) < _STACK_FRAMES:
            code = frame.f_code
            names.append(f"{os.path.basename(code.co_filename)}:{frame.f_lineno} {code.co_name}")
            frame = frame.f_back
        return " < ".join(names)


def _is_infrastructure(error: BaseException, fault: bool) -> bool:
    """Whether the database, not the job, is to blame.

    A lost connection is always the infrastructure's. Lock and statement timeouts are it only in
    our own statements, which say so by `fault`; in the handler's they are its own failures.
    """
    if isinstance(error, Cancelled):
        return False
    return fault or (isinstance(error, psycopg.Error) and classify(error) is Fault.INFRASTRUCTURE)
