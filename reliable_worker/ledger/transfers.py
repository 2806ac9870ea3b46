"""Moving money: one function of the database, tried again where that is safe.

Floor 6; imports postgres, jobs. The statement is its own transaction, so an error with a SQLSTATE
says that nothing was done. A lost connection says nothing: the same request under the same key is
then sent again, which finds out (it is carried out, or is told that it was) and cannot move money
twice. All tries are within the request's first deadline.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass

import psycopg

from reliable_worker.jobs.deadline import Deadline
from reliable_worker.jobs.errors import BudgetExceeded
from reliable_worker.jobs.events import emit
from reliable_worker.ledger import schema
from reliable_worker.ledger.decode import Transfer
from reliable_worker.ledger.metrics import Metrics
from reliable_worker.ledger.pool import LEAST_SECONDS, Pool
from reliable_worker.ledger.settings import LedgerSettings
from reliable_worker.postgres.database import Connection, DeadlineExceeded, Fault, classify

# After the first try. More would only add load where there is too much already.
RETRIES = 2
# A deadlock's other party is done within a few milliseconds.
PAUSE_SECONDS = (0.005, 0.03)
# Between looks for a database that is away while a try may have been carried out.
LOOK_SECONDS = (0.05, 0.15)

_AGAIN = {"40001": "serialization", "40P01": "deadlock"}

# An outcome of ledger_transfer that is none of ours to celebrate → the problem's code.
_PROBLEMS = {
    "conflict": "idempotency_conflict",
    "key_busy": "in_flight",
    "account_busy": "account_busy",
    "insufficient_funds": "insufficient_funds",
    "account_missing": "account_missing",
    "receiver_overflow": "receiver_overflow",
}


@dataclass(frozen=True, slots=True)
class Moved:
    """The transfer is committed; `replayed`: by an earlier request."""

    transfer_id: int
    replayed: bool


class TransferFailed(Exception):
    """Not carried out, or not known to be; `code` is the problem's."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Transfers:
    """Carries out transfers over the pool. One object for all threads."""

    def __init__(self, settings: LedgerSettings, pool: Pool, metrics: Metrics) -> None:
        self._pool = pool
        self._metrics = metrics
        self._outbox = settings.outbox
        self._lock_ms = max(1, int(settings.lock_timeout_seconds * 1000))
        self._stop = threading.Event()

    def move(self, key: str, asked: Transfer, deadline: Deadline) -> Moved:
        """Carry out a request, or find that it has been. Raises TransferFailed, psycopg.Error."""
        doubt = False
        tries = 0
        while True:
            conn = self._connect(deadline, doubt)
            if not tries:
                waited = deadline.seconds - deadline.remaining()
                self._metrics.observe("pool_wait_seconds", waited)
            try:
                with self._pool.using(conn, deadline):
                    ((outcome, transfer_id),) = schema.run(
                        conn,
                        "transfer",
                        [*_words(key, asked), self._outbox, self._lock_ms],
                    )
                return self._judge(outcome, transfer_id, doubt)
            except psycopg.Error as error:
                tries += 1
                reason = self._reason_to_retry(error)
                doubt = doubt or reason == "connection"
                if reason is None or tries > RETRIES or deadline.remaining() < LEAST_SECONDS:
                    raise self._failed(error, doubt) from error
                self._metrics.count("retries_total", reason)
                emit("transfer_retried", "warning", error=error, reason=reason)
                self._pause(PAUSE_SECONDS, deadline)

    def _connect(self, deadline: Deadline, doubt: bool) -> Connection:
        """A connection; in doubt about an earlier try as often as the deadline allows."""
        while True:
            try:
                return self._pool.acquire(deadline)
            except (psycopg.Error, BudgetExceeded, OSError) as error:
                if doubt and deadline.remaining() > LOOK_SECONDS[1]:
                    self._pause(LOOK_SECONDS, deadline)
                    continue
                emit("transfer_failed", "warning", error=error)
                if doubt:
                    raise self._unknown() from error
                late = isinstance(error, BudgetExceeded)
                raise TransferFailed(
                    "deadline_exceeded" if late else "database_unavailable"
                ) from error

    def _judge(self, outcome: str, transfer_id: int, doubt: bool) -> Moved:
        self._metrics.count("transfers_total", outcome)
        if outcome in ("completed", "replayed"):
            return Moved(transfer_id, outcome == "replayed")
        if outcome in ("key_busy", "account_busy"):
            self._metrics.count("lock_timeout_expiries_total", outcome.removesuffix("_busy"))
        if outcome not in ("conflict", "key_busy"):
            self._metrics.count("rollbacks_total", outcome)
        if doubt and outcome == "key_busy":
            # Our own lost try may be what holds the key.
            raise self._unknown()
        raise TransferFailed(_PROBLEMS[outcome])

    def _reason_to_retry(self, error: psycopg.Error) -> str | None:
        """Why the same may go through now; None: it must not be tried again."""
        state = error.sqlstate or ""
        if state in _AGAIN:
            self._metrics.count("rollbacks_total", _AGAIN[state])
            return _AGAIN[state]
        if isinstance(error, DeadlineExceeded):
            return None
        lost = not state or state.startswith(("08", "57P"))
        return "connection" if lost and classify(error) is Fault.INFRASTRUCTURE else None

    def _failed(self, error: psycopg.Error, doubt: bool) -> Exception:
        """What to raise for an error that is not tried again."""
        emit("transfer_failed", "warning", error=error)
        if isinstance(error, DeadlineExceeded):
            self._metrics.count("query_deadline_expiries_total", "client")
            return self._unknown()
        if doubt:
            return self._unknown()
        state = error.sqlstate or ""
        if state in _AGAIN:
            return TransferFailed("account_busy")
        self._metrics.count("rollbacks_total", state or "error")
        if state == "57014":
            self._metrics.count("query_deadline_expiries_total", "server")
            return TransferFailed("deadline_exceeded")
        if classify(error) is Fault.INFRASTRUCTURE:
            return TransferFailed("database_unavailable")
        return error

    def _unknown(self) -> TransferFailed:
        self._metrics.count("unknown_outcomes_total")
        return TransferFailed("outcome_unknown")

    def _pause(self, between: tuple[float, float], deadline: Deadline) -> None:
        self._stop.wait(min(random.uniform(*between), deadline.remaining()))


def _words(key: str, asked: Transfer) -> list[object]:
    return [key, asked.from_id, asked.to_id, asked.amount]
