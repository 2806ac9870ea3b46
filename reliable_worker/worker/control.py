"""The control lane: one connection per worker process, for claims and renewals only.

Floor 3. Handlers can use up every other connection without a lease being lost for it. Threads
take turns; waiting for the turn counts against the caller's own budget.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from reliable_worker.jobs.board import ChildBoard
from reliable_worker.jobs.deadline import Deadline, boottime
from reliable_worker.jobs.errors import BudgetExceeded
from reliable_worker.jobs.events import emit
from reliable_worker.postgres import store
from reliable_worker.postgres.database import Connection, Fault, classify, connect
from reliable_worker.postgres.marks import check_range
from reliable_worker.settings import Settings


class Control:
    """Lends the one connection, connecting again as needed."""

    def __init__(self, settings: Settings, boot: str, board: ChildBoard) -> None:
        self._settings = settings
        self._boot = boot
        self._board = board
        self._turn = threading.Lock()
        self._conn: Connection | None = None
        self.backend: store.Backend | None = None

    @contextmanager
    def use(self, seconds: float, name: str) -> Iterator[Connection]:
        """The connection for at most `seconds`, connecting aside.

        Raises `BudgetExceeded` when the turn does not come in time, psycopg.Error, and
        `SchemaMismatch` from a connect. After an infrastructure fault the connection is closed.
        """
        deadline = Deadline(seconds, name)
        asked_at = boottime()
        if not self._turn.acquire(timeout=seconds):
            raise BudgetExceeded(name, seconds)
        try:
            emit("connection_lent", "debug", lane="control", wait_seconds=boottime() - asked_at)
            conn = self._conn
            if conn is None or conn.closed:
                conn = self._connect()
                deadline = Deadline(seconds, name)  # connecting has a budget of its own
            with conn.budget(deadline.remaining(), name):
                yield conn
            self._board.set_contact(boottime())
        except (psycopg.Error, BudgetExceeded) as error:
            if self._conn is not None and classify(error) is Fault.INFRASTRUCTURE:
                self._close()
            raise
        finally:
            self._turn.release()

    def close(self) -> None:
        """Close, unless another thread is using the connection this very moment."""
        if self._turn.acquire(timeout=self._settings.claim_timeout_seconds):
            try:
                self._close()
            finally:
                self._turn.release()

    def _connect(self) -> Connection:
        self._close()
        conn = connect(self._settings, lane="control", boot=self._boot)
        try:
            with conn.budget(self._settings.query_timeout_seconds, "query_timeout_seconds"):
                check_range(conn)
                self.backend = store.verify_transaction(conn)[1]
        except BaseException:
            conn.close()
            raise
        self._conn = conn
        self._board.set_contact(boottime())
        self._board.set_ready()
        emit("database_connected", lane="control")
        return conn

    def _close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None
