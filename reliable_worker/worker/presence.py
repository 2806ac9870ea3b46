"""Presence: a worker process says that it is alive, and what it runs.

Floor 3, beside a job's way. What it says stands in `worker_processes`, for operators only: `jobs
explain` names the host and pid that run a job and tells when nobody alive knows its kind. Nothing
decides by it, so a word that cannot be said is left unsaid.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection

import psycopg

from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.errors import ReliableWorkerError
from reliable_worker.postgres import store
from reliable_worker.worker.shared import Shared

# One small update per process and interval. Silent for three of them, it counts as gone
# (`operators.ALIVE_SECONDS`).
TELL_SECONDS = 10.0


class Presence:
    """Used by the producer's thread."""

    def __init__(self, shared: Shared, role: str, slots: int, kinds: Collection[str]) -> None:
        self._shared = shared
        self._role = role
        self._slots = slots
        self._kinds = sorted(kinds)
        self._due_at = 0.0

    def tell(self) -> None:
        """Say it, when it is time and the database is there. Raises nothing of the database's."""
        shared, settings = self._shared, self._shared.settings
        if boottime() < self._due_at or not shared.board.ready:
            return
        self._due_at = boottime() + TELL_SECONDS
        try:
            with shared.control.use(
                settings.claim_timeout_seconds, "claim_timeout_seconds"
            ) as conn:
                store.seen(
                    conn,
                    shared.boot,
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    role=self._role,
                    slots=self._slots,
                    kinds=self._kinds,
                    queues=settings.queues,
                )
        except (psycopg.Error, ReliableWorkerError, OSError):
            pass  # the claim that follows meets the same trouble and tells of it
