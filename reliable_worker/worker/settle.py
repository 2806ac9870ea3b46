"""One job's outcome, written alone.

Floor 3. A completion with its effects is a transaction; the other outcomes are one fenced
statement each. A statement whose reply was lost is simply sent again: its fence makes it
idempotent, 0 rows then mean that the first one arrived.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from reliable_worker.jobs import failpoints
from reliable_worker.jobs.errors import LeaseLost, TransactionBroken, describe
from reliable_worker.jobs.events import emit
from reliable_worker.jobs.outcome import (
    Bury,
    Complete,
    Ending,
    Outcome,
    Refund,
    Release,
    RetryLater,
    SnoozeUntil,
    decide,
)
from reliable_worker.postgres import store
from reliable_worker.postgres.database import Connection, Fault, classify, proves_rollback
from reliable_worker.worker import effects
from reliable_worker.worker.group import (
    lost,
    succeeded,
    too_late,
    unknown,
    verify,
)
from reliable_worker.worker.unknown import Answer, resolve

if TYPE_CHECKING:
    from reliable_worker.worker.finish import Finished, Finisher

# A job's effects are replayed once after a fault of the infrastructure; a second one may be the
# effects' own doing, so the job is given back, counted.
_INTERRUPTIONS = 2


def settle(finisher: Finisher, item: Finished) -> list[Finished]:
    """Write one outcome; the item again when it has to be written another time.

    Raises psycopg.Error, PoolTimeout or BudgetExceeded when the database could not be asked.
    """
    shared = finisher.shared
    if isinstance(item.outcome, Complete) and item.interruptions >= _INTERRUPTIONS:
        text = "the connection was lost in the finishing transaction, twice"
        ending = Ending(psycopg.OperationalError(text), text, True, shared.stop_word())
        item.outcome = decide(item.job, ending, shared.policy)
    settings = shared.settings
    with shared.pool.connection(settings.query_timeout_seconds) as conn:
        if isinstance(item.outcome, Complete):
            with conn.budget(settings.finish_timeout_seconds, "finish_timeout_seconds"):
                return _complete(finisher, conn, item)
        with conn.budget(settings.query_timeout_seconds, "query_timeout_seconds"):
            return _write(finisher, conn, item, item.outcome)


def _complete(finisher: Finisher, conn: Connection, item: Finished) -> list[Finished]:
    lease = item.job.lease
    try:
        lease.begin_finish()
    except LeaseLost:
        return too_late(finisher, item)
    try:
        return _transact(finisher, conn, item)
    finally:
        lease.resume()  # no effect once it has ended


def _transact(finisher: Finisher, conn: Connection, item: Finished) -> list[Finished]:
    store.begin(conn)
    lease = item.job.lease
    xid = store.complete(conn, lease)
    if xid is None:
        store.rollback(conn)
        if not (item.uncertain and resolve(finisher.shared, lease, None) is Answer.COMMITTED):
            lost(finisher, item)
        else:
            succeeded(finisher, item)
        return []
    try:
        tags = effects.run(conn, item.effects)
        backend = verify(conn, xid)
    except Exception as error:  # an effect's parameters can raise anything
        return _effect_failed(finisher, conn, item, error)
    try:
        failpoints.reach("before_commit")
        tag = store.commit(conn)
        failpoints.reach("after_commit")
    except psycopg.Error as error:
        if proves_rollback(error):  # a deferred constraint of an effect's table
            return _effect_failed(finisher, conn, item, error)
        conn.close()
        return [item] if unknown(finisher, item, backend) else []
    if tag != "COMMIT":
        return _effect_failed(
            finisher,
            conn,
            item,
            TransactionBroken(f"the commit was answered {tag}: nothing was committed"),
        )
    succeeded(finisher, item)
    if not tags <= effects.PLAIN_TAGS:
        store.discard_all(conn)
    return []


def _effect_failed(
    finisher: Finisher, conn: Connection, item: Finished, error: Exception
) -> list[Finished]:
    """The job's own effect failed: that is a failure of the job, unless the way broke."""
    if isinstance(error, psycopg.Error) and classify(error) is Fault.INFRASTRUCTURE:
        conn.close()
        item.interruptions += 1
        return [item]
    if not conn.closed:
        store.rollback(conn)
    ending = Ending(error, describe(error, item.job.secrets()), False, finisher.shared.stop_word())
    item.outcome = decide(item.job, ending, finisher.shared.policy)
    return [item]


def _write(
    finisher: Finisher, conn: Connection, item: Finished, outcome: Outcome
) -> list[Finished]:
    failpoints.reach("in_release")
    item.job.lease.pause()  # a renewal would find the row given back and take it for lost
    try:
        held = _statement(conn, item, outcome)
    except BaseException as error:
        item.uncertain = item.uncertain or isinstance(error, psycopg.Error)
        item.job.lease.resume()
        raise
    finisher.shared.book.drop(item.job.lease)
    if not held and not item.uncertain:
        emit("stale_finish", "warning", **item.job.facts())
        emit("job_abandoned", "warning", reason="lease_lost", **item.facts)
        return []
    _say(item, outcome)
    return []


def _statement(conn: Connection, item: Finished, outcome: Outcome) -> bool:
    lease = item.job.lease
    match outcome:
        case RetryLater():
            return store.retry(conn, lease, outcome.delay_seconds, outcome.error)
        case Bury():
            return store.bury(conn, lease, outcome.error)
        case Refund():
            return store.refund(conn, lease, outcome.delay_seconds)
        case SnoozeUntil():
            return store.snooze(conn, lease, outcome.seconds)
        case Release():
            return lease.id in store.release(conn, [lease])
        case _:
            raise TypeError(f"{outcome!r} is not written by a single statement")


def _say(item: Finished, outcome: Outcome) -> None:
    facts = item.facts
    match outcome:
        case RetryLater():
            emit(
                "job_failed",
                "warning",
                error=outcome.error,
                reason=outcome.reason,
                retry_seconds=outcome.delay_seconds,
                outcome="retried",
                **facts,
            )
        case Bury(reason="discarded"):
            emit("job_discarded", "warning", error=outcome.error, **facts)
        case Bury():
            emit(
                "job_failed",
                "error",
                error=outcome.error,
                reason=outcome.reason,
                outcome="dead",
                **facts,
            )
        case Refund():
            emit(
                "job_released",
                reason=outcome.reason,
                retry_seconds=outcome.delay_seconds,
                outcome="refunded",
                **facts,
            )
        case SnoozeUntil():
            emit("job_snoozed", retry_seconds=outcome.seconds, **facts)
        case Release():
            emit("job_released", reason=outcome.reason, **facts)
        case _:
            pass
