"""A COMMIT without an answer: learn what it did.

Floor 3. The read must lock the row. A plain read would see the old state while the old backend
still has the COMMIT in its socket buffer and carries it out a moment later; a lock can only be had
once that backend has ended its transaction. A backend that does not end is told to.
"""

from __future__ import annotations

import threading
from enum import Enum

import psycopg

from reliable_worker.jobs.deadline import Deadline
from reliable_worker.jobs.errors import ReliableWorkerError
from reliable_worker.jobs.lease import Lease
from reliable_worker.jobs.retry import full_jitter
from reliable_worker.postgres import store
from reliable_worker.postgres.database import connect
from reliable_worker.worker.shared import Shared

_PAUSE_SECONDS = 0.2
_LOCKED = "55P03"


class Answer(Enum):
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    LOST = "lost"
    UNKNOWN = "unknown"


def resolve(shared: Shared, lease: Lease, backend: store.Backend | None) -> Answer:
    """What became of this lease's COMMIT, asked while the lease lasts (one connect at least)."""
    settings = shared.settings
    seconds = max(settings.connect_timeout_seconds, lease.remaining())
    deadline = Deadline(min(seconds, settings.lease_seconds), "lease_seconds")
    pause = threading.Event()
    while not deadline.passed:
        try:
            return _read(shared, lease, backend)
        except (psycopg.Error, ReliableWorkerError, OSError):
            pause.wait(full_jitter(_PAUSE_SECONDS))
    return Answer.UNKNOWN


def _read(shared: Shared, lease: Lease, backend: store.Backend | None) -> Answer:
    settings = shared.settings
    conn = connect(settings, lane="resolve", boot=shared.boot)
    try:
        with conn.budget(settings.query_timeout_seconds, "query_timeout_seconds"):
            try:
                row = store.resolve(conn, lease.id)
            except psycopg.Error as error:
                if error.sqlstate == _LOCKED and backend is not None:
                    store.terminate(conn, backend)
                raise
    finally:
        conn.close()
    if row is None or row.fence != lease.fence:
        return Answer.LOST
    if row.state == "succeeded":
        return Answer.COMMITTED
    return Answer.ROLLED_BACK if row.owner == lease.owner else Answer.LOST
