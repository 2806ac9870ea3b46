"""`job.transaction()` and `job.finish(fn)`: effects and completion in one short fenced commit.

Floor 3. The first statement is the completion, so a lost lease shows before any effect and the
row's lock is the lease from then on. Before COMMIT the transaction must be the one that was begun
and still healthy: a swallowed SQL error would turn COMMIT into a silent ROLLBACK, and a handler's
own COMMIT or ROLLBACK would tear effects and completion apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import psycopg
from psycopg import errors as pg_errors
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow

from reliable_worker.jobs import failpoints
from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.errors import (
    LeaseLost,
    OutcomeUnknown,
    TransactionBroken,
)
from reliable_worker.jobs.events import emit
from reliable_worker.jobs.job import Params, Transaction
from reliable_worker.postgres import store
from reliable_worker.postgres.database import Connection, Fault, classify, proves_rollback
from reliable_worker.worker import effects
from reliable_worker.worker.unknown import Answer, resolve

if TYPE_CHECKING:
    from reliable_worker.worker.context import JobContext

# finish(fn) is called again so often after a proven rollback the database is to blame for.
_REPLAYS = 2


class Guarded:
    """What a handler gets of the connection: statements, but not the transaction's end."""

    def __init__(self, conn: Connection, context: JobContext) -> None:
        self._conn = conn
        self._context = context
        self.over = False  # the block has ended; the connection is somebody else's

    def execute(self, query: Any, params: Params | None = None) -> psycopg.Cursor[TupleRow]:
        self._check()
        cursor = self._conn.execute(query, params)
        if not effects.traceless(query, effects.tag(cursor)):
            self._context.traces = True
        failpoints.reach("after_first_effect")
        return cursor

    def executemany(self, query: Any, params: Iterable[Params]) -> None:
        self._check()
        with self._conn.cursor() as cursor:
            cursor.executemany(query, params)
            if not effects.traceless(query, effects.tag(cursor)):
                self._context.traces = True

    def _check(self) -> None:
        """Refuse statements outside the transaction: they would commit one by one, or elsewhere."""
        if self.over:
            raise TransactionBroken("the job's transaction is over: its block has ended")
        if self._conn.info.transaction_status is TransactionStatus.IDLE:
            raise TransactionBroken(
                "the job's transaction was ended from inside the block; "
                "leave COMMIT and ROLLBACK to the block's end"
            )

    def commit(self) -> NoReturn:
        raise TransactionBroken("tx.commit() is refused: leaving the block commits")

    def rollback(self) -> NoReturn:
        raise TransactionBroken("tx.rollback() is refused: raise an exception to roll back")

    def close(self) -> NoReturn:
        raise TransactionBroken("tx.close() is refused: the connection belongs to the worker")

    @property
    def autocommit(self) -> bool:
        return False

    @autocommit.setter
    def autocommit(self, value: bool) -> None:
        raise TransactionBroken("tx.autocommit is refused: the block is one transaction")


@contextmanager
def transaction(context: JobContext) -> Iterator[Transaction]:
    """The finishing transaction as a block; see `Job.transaction`."""
    with context.block(), _connection(context) as conn:
        _open(context, conn)
        tx = Guarded(conn, context)
        try:
            context.busy = conn
            context.traces = not effects.run(conn, context.effects) <= effects.PLAIN_TAGS
            yield tx
            tx.over = True
        except BaseException as error:
            tx.over = True
            context.busy = None
            context.traces = True  # of whatever it was that failed
            if not conn.closed and conn.info.transaction_status is TransactionStatus.IDLE:
                _learn(context)  # the block ended the transaction itself
            _give_up(context, conn)
            if isinstance(error, pg_errors.QueryCanceled):
                context.check()  # we cancelled it: say why rather than "canceled"
            if isinstance(error, psycopg.Error) and classify(error) is Fault.INFRASTRUCTURE:
                context.fault = True
            raise
        context.busy = None
        _close(context, conn)


def finish(context: JobContext, function: Callable[[Transaction], None]) -> None:
    """`function` in a finishing transaction, again after a rollback that is not its fault."""
    for left in range(_REPLAYS, -1, -1):
        context.fault = False
        try:
            with transaction(context) as tx:
                function(tx)
            return
        except psycopg.Error as error:
            again = context.fault or classify(error) is Fault.TRANSIENT
            if context.finished or context.unknown or not (again and left):
                raise


@contextmanager
def _connection(context: JobContext) -> Iterator[Connection]:
    """One of the pool's connections under the finishing budget, and a clean session after."""
    context.check()
    shared = context.shared
    settings = shared.settings
    lease = context.claimed.lease
    if not shared.book.renew_now(lease, settings.finish_timeout_seconds):
        context.check()
        if lease.remaining() <= 0:
            if lease.expire():  # the heartbeat may not have come round to it
                emit("lease_lost", "warning", reason="deadline", **context.claimed.facts())
            raise LeaseLost("the lease could not be renewed for the finishing transaction")
    asked_at = boottime()
    try:
        conn = shared.pool.getconn(timeout=settings.query_timeout_seconds)
    except Exception:
        context.fault = True
        raise
    context.lent_at = boottime()
    emit("connection_lent", "debug", lane="work", wait_seconds=context.lent_at - asked_at)
    try:
        with conn.budget(settings.finish_timeout_seconds, "finish_timeout_seconds"):
            yield conn
    finally:
        _give_back(context, conn)


def _give_back(context: JobContext, conn: Connection) -> None:
    """Return the connection with nothing of this handler in it, or closed."""
    seconds = context.shared.settings.query_timeout_seconds
    try:
        if not conn.closed:
            idle = conn.info.transaction_status is TransactionStatus.IDLE
            if context.interrupted or not idle:
                conn.close()  # a cancel that is late must not meet another job's statement
            elif context.traces:
                with conn.budget(seconds, "query_timeout_seconds"):
                    store.discard_all(conn)
    except psycopg.Error:
        conn.close()
    context.shared.pool.putconn(conn)


def _open(context: JobContext, conn: Connection) -> None:
    """BEGIN and the fenced completion."""
    lease = context.claimed.lease
    lease.begin_finish()
    try:
        store.begin(conn)
        context.xid = store.complete(conn, lease)
    except BaseException as error:
        _give_up(context, conn)
        if isinstance(error, psycopg.Error):
            context.fault = classify(error) in (Fault.INFRASTRUCTURE, Fault.TRANSIENT)
        raise
    if context.xid is None:
        _give_up(context, conn)
        emit("stale_finish", "warning", **context.claimed.facts())
        lease.lose("the finishing transaction found another owner or fence")
        raise LeaseLost("another worker owns the job: nothing was committed")


def _give_up(context: JobContext, conn: Connection) -> None:
    """Roll back and let renewals go on."""
    try:
        if not conn.closed and conn.info.transaction_status is not TransactionStatus.IDLE:
            store.rollback(conn)
    except psycopg.Error:
        conn.close()  # the server rolls back when the connection is gone
    context.claimed.lease.resume()


def _close(context: JobContext, conn: Connection) -> None:
    """Verify and commit."""
    status = conn.info.transaction_status
    if status is TransactionStatus.INERROR:
        _give_up(context, conn)
        raise TransactionBroken(
            "a statement of the block failed and its error was swallowed: nothing was committed"
        )
    if status is not TransactionStatus.INTRANS and not conn.closed:
        _torn(context)
    try:
        xid, backend = store.verify_transaction(conn)
    except BaseException as error:
        _give_up(context, conn)
        if isinstance(error, psycopg.Error):
            context.fault = classify(error) in (Fault.INFRASTRUCTURE, Fault.TRANSIENT)
        raise
    if xid != context.xid:
        _give_up(context, conn)
        _torn(context)
    try:
        failpoints.reach("before_commit")
        tag = store.commit(conn)
    except psycopg.Error as error:
        if proves_rollback(error):
            _give_up(context, conn)
            raise
        conn.close()
        _ask(context, backend, error)
        return
    except BaseException:  # before anything was sent
        _give_up(context, conn)
        raise
    if tag != "COMMIT":
        context.claimed.lease.resume()
        raise TransactionBroken(f"the commit was answered {tag}: nothing was committed")
    _finished(context)
    failpoints.reach("after_commit")


def _finished(context: JobContext) -> None:
    now = boottime()
    context.committed = {
        "finish_seconds": now - context.lent_at,
        "margin_seconds": context.claimed.lease.until - now,
    }
    context.finished = True
    context.shared.book.drop(context.claimed.lease)


def _ask(context: JobContext, backend: store.Backend, error: psycopg.Error) -> None:
    """COMMIT was sent and not answered: find out, or say that it is unknown."""
    job = context.claimed
    emit("finish_unknown", "warning", **job.facts())
    context.resolving = True
    answer = resolve(context.shared, job.lease, backend)
    context.resolving = False
    emit("finish_resolved", outcome=answer.value, **job.facts())
    if answer is Answer.COMMITTED:
        _finished(context)
    elif answer is Answer.ROLLED_BACK:
        job.lease.resume()
        context.fault = True
        raise error
    elif answer is Answer.LOST:
        job.lease.lose("another worker owns the job after a lost COMMIT")
        raise LeaseLost("another worker owns the job: this run's COMMIT did not happen")
    else:
        context.unknown = True
        raise OutcomeUnknown("whether the job's COMMIT happened could not be learned") from error


def _learn(context: JobContext) -> Answer:
    """The block ended our transaction itself; the row tells with which result."""
    context.resolving = True
    answer = resolve(context.shared, context.claimed.lease, None)
    context.resolving = False
    if answer is Answer.COMMITTED:
        _finished(context)
    elif answer is Answer.UNKNOWN:
        context.unknown = True
    return answer


def _torn(context: JobContext) -> NoReturn:
    answer = _learn(context)
    context.claimed.lease.resume()
    end = (
        "the job is committed with what came before that"
        if answer is Answer.COMMITTED
        else "the job is not finished"
    )
    raise TransactionBroken(f"the job's transaction was ended from inside the block: {end}")
