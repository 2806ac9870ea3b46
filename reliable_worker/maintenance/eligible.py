"""Eligible: answer the parent of `run --drain` whether anything is left to do.

On a job's way: between enqueue and claim, at the very end of a run that ends when its queue is
empty. The parent asks when all its workers' hands are empty and gets its question back with a
count, read after it asked. Floor 4. Imports postgres and jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from reliable_worker.maintenance.lane import Lane
from reliable_worker.maintenance.served import Served
from reliable_worker.postgres import upkeep

# More than none is all the parent needs to know.
COUNT_LIMIT = 100


class Eligible:
    """The service `eligible`: due when there is a question and the kinds are known."""

    name = "eligible"

    def __init__(self, served: Served, say: Callable[[Mapping[str, object]], None]) -> None:
        self._served = served
        self._say = say
        self._question: Mapping[str, object] | None = None

    def ask(self, question: Mapping[str, object]) -> None:
        """Answer this one; an older one still open is not worth an answer any more."""
        self._question = question

    def due_at(self) -> float:
        return 0.0 if self._question is not None and self._served.kinds else float("inf")

    def run_once(self, lane: Lane) -> int:
        """Answer; how many jobs are eligible."""
        question, served = self._question, self._served
        if question is None:
            return 0
        count = lane.call(
            lambda conn: upkeep.eligible(conn, served.kinds, served.queues, COUNT_LIMIT)
        )
        self._say({**question, "count": count})
        if self._question is question:
            self._question = None
        return count
