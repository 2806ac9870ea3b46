"""What the parts of one worker process share.

Floor 3. Made once by `worker.main` and handed to each part; holds no logic but the words in
which one part tells another of the stop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from psycopg_pool import ConnectionPool

from reliable_worker.jobs.board import ChildBoard
from reliable_worker.jobs.outcome import Policy
from reliable_worker.postgres.database import Connection
from reliable_worker.process import Stop
from reliable_worker.settings import Settings
from reliable_worker.worker.control import Control
from reliable_worker.worker.renewal import LeaseBook

if TYPE_CHECKING:
    from reliable_worker.worker.finish import Finisher


def _nobody() -> None:
    """Before the worker is whole."""


@dataclass(slots=True)
class Shared:
    """One worker process's common parts."""

    settings: Settings
    boot: str
    board: ChildBoard
    policy: Policy
    control: Control
    book: LeaseBook
    pool: ConnectionPool[Connection]
    finisher: Finisher = field(init=False)
    on_stuck: Callable[[], None] = _nobody  # a slot's thread outlived its cancellation
    stop: Stop = Stop.RUN

    def stop_word(self) -> Literal["run", "drain", "orphaned"]:
        """How far this process has to stop, in the words of `decide`."""
        if self.stop is Stop.ORPHANED:
            return "orphaned"
        return "drain" if self.stop is Stop.DRAIN else "run"
