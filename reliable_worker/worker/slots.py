"""The slots: worker threads, each paired with its heartbeat thread.

Floor 3. A slot runs one job at a time. Its heartbeat is alive before the job is dispatched; a
process that cannot start all its threads says so before it claims anything.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping

from reliable_worker.enqueue.app import Handler
from reliable_worker.jobs.errors import describe
from reliable_worker.jobs.events import emit
from reliable_worker.jobs.job import ClaimedJob
from reliable_worker.jobs.outcome import Ending, Release, decide
from reliable_worker.worker.execution import Execution
from reliable_worker.worker.finish import Finished
from reliable_worker.worker.heartbeat import Heartbeat
from reliable_worker.worker.shared import Shared

# A slot's thread looks up from waiting so often, only to see whether it should end.
_LOOK_SECONDS = 1.0


class Slot:
    """One worker thread and its heartbeat."""

    def __init__(self, index: int, slots: Slots) -> None:
        self.index = index
        self.reserved = False  # promised to a claim under way, or running a job
        self.execution: Execution | None = None
        self._slots = slots
        self._mailbox: queue.SimpleQueue[ClaimedJob] = queue.SimpleQueue()
        shared = slots.shared
        self.heartbeat = Heartbeat(index, shared.book, shared.settings.renew_seconds)
        self.thread = threading.Thread(target=self._run, name=f"slot-{index}", daemon=True)

    def give(self, job: ClaimedJob) -> None:
        """Dispatch a job to this slot, which was reserved for it."""
        self._mailbox.put(job)

    def take_back(self) -> ClaimedJob | None:
        """A job given but not yet begun."""
        try:
            return self._mailbox.get_nowait()
        except queue.Empty:
            return None

    def _run(self) -> None:
        while not self._slots.closed:
            try:
                job = self._mailbox.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                continue
            following: ClaimedJob | None = job
            while following is not None:
                self._execute(following)
                following = self._slots.prefetched()
                if following is not None and self._slots.waiting == self._slots.low:
                    self._slots.on_free()  # time to claim ahead again
            self.reserved = False
            self._slots.on_free()

    def _execute(self, job: ClaimedJob) -> None:
        shared = self._slots.shared
        if shared.stop:
            # claimed before the stop, not begun after it
            shared.finisher.submit(Finished(job, Release("unstarted")))
            return
        handler = self._slots.handlers[job.kind]
        execution = Execution(shared, handler, job, self.index, self.thread)
        self.execution = execution
        shared.board.start(self.index, job.id, job.lease.fence)
        self.heartbeat.begin(execution)
        try:
            execution.run()
        except Exception as error:  # a defect of ours: the job is tried again, the slot goes on
            text = describe(error, job.secrets())
            emit("execution_failed", "error", error=text, **job.facts())
            outcome = decide(job, Ending(error, text), shared.policy)
            shared.finisher.submit(Finished(job, outcome))
        finally:
            self.heartbeat.end()
            shared.board.end(self.index)
            self.execution = None


class Slots:
    """All slots of the process, and the jobs claimed beyond them (`prefetch`)."""

    def __init__(
        self,
        shared: Shared,
        count: int,
        handlers: Mapping[str, Handler],
        on_free: Callable[[], None],
    ) -> None:
        self.shared = shared
        self.handlers = handlers
        self.on_free = on_free
        self.closed = False
        self.low = shared.settings.prefetch // 2
        self._waiting: queue.SimpleQueue[ClaimedJob] = queue.SimpleQueue()
        self._all = [Slot(index, self) for index in range(count)]

    def start(self) -> None:
        """Start every thread; raises RuntimeError when the system allows no more."""
        for slot in self._all:
            slot.heartbeat.start()
        for slot in self._all:
            slot.thread.start()

    def reserve(self) -> list[int]:
        """The free slots, now promised to a claim; jobs that wait for a slot take theirs first.

        They would wait for ever: a slot that ended while its next job was still being claimed
        has found none, and looks no more.
        """
        promised: list[int] = []
        for slot in self._all:
            if slot.reserved:
                continue
            slot.reserved = True
            job = self.prefetched()
            if job is None:
                promised.append(slot.index)
            else:
                slot.give(job)
        return promised

    def free(self, indexes: list[int]) -> None:
        """Give up promises that brought no job."""
        for index in indexes:
            self._all[index].reserved = False

    def give(self, index: int, job: ClaimedJob) -> None:
        self._all[index].give(job)

    def prefetch(self, job: ClaimedJob) -> None:
        """Keep a claimed job for the next slot that ends one."""
        self._waiting.put(job)

    def prefetched(self) -> ClaimedJob | None:
        if self.shared.stop or self.closed:
            return None
        try:
            return self._waiting.get_nowait()
        except queue.Empty:
            return None

    @property
    def waiting(self) -> int:
        return self._waiting.qsize()

    def take_back(self) -> list[ClaimedJob]:
        """Every job that was claimed and has not begun: it can be released at once."""
        jobs: list[ClaimedJob] = []
        for slot in self._all:
            job = slot.take_back()
            if job is not None:
                jobs.append(job)
                slot.reserved = False
        while True:
            try:
                jobs.append(self._waiting.get_nowait())
            except queue.Empty:
                return jobs

    @property
    def busy(self) -> int:
        return sum(slot.reserved for slot in self._all)

    def executions(self) -> list[Execution]:
        return [running for slot in self._all if (running := slot.execution) is not None]

    def close(self) -> None:
        self.closed = True
        for slot in self._all:
            slot.heartbeat.close()
