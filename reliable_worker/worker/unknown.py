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
from reliable_worker.postgres.database import Fault, classify, connect
from reliable_worker.process import Stop
from reliable_worker.worker.shared import Shared

_PAUSE_SECONDS = 0.2
_LOCKED = "55P03"


class Answer(Enum):
    """What a COMMIT without a reply has done."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    LOST = "lost"
    UNKNOWN = "unknown"


def resolve(shared: Shared, lease: Lease, backend: store.Backend | None) -> Answer:
    """What became of this lease's COMMIT.

    An outage is waited for, as everything here waits for it: the fence stays the judge however
    long it takes. UNKNOWN after a lease of not getting the row's lock, or when this process has
    to stop.
    """
    settings = shared.settings
    locked: Deadline | None = None
    stopping: Deadline | None = None
    pause = threading.Event()
    while True:
        try:
            return _read(shared, lease, backend)
        except (psycopg.Error, ReliableWorkerError, OSError) as error:
            if classify(error) is not Fault.INFRASTRUCTURE:
                # the row is locked, or this role may not ask: waiting longer helps neither
                locked = locked or Deadline(settings.lease_seconds, "lease_seconds")
            if shared.stop >= Stop.DRAIN:
                seconds = settings.release_timeout_seconds
                stopping = stopping or Deadline(seconds, "release_timeout_seconds")
        if (locked is not None and locked.passed) or (stopping is not None and stopping.passed):
            return Answer.UNKNOWN
        pause.wait(full_jitter(_PAUSE_SECONDS))


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
