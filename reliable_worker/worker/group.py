"""Group commit: many completions and their recorded effects in one transaction.

Floor 3. Each row is fenced alone by `complete_many`; effects of the jobs that passed follow. A
group is an economy, never a promise: whatever goes wrong in it, its jobs are done again one by
one (`settle`), and a job missing from the group's answer is asked for alone before it is taken
for lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
from psycopg.pq import TransactionStatus

from reliable_worker.jobs import failpoints
from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.errors import LeaseLost, TransactionBroken
from reliable_worker.jobs.events import emit
from reliable_worker.jobs.outcome import Ending, decide
from reliable_worker.postgres import store
from reliable_worker.postgres.database import Connection, Fault, classify, proves_rollback
from reliable_worker.worker import effects
from reliable_worker.worker.unknown import Answer, resolve

if TYPE_CHECKING:
    from reliable_worker.worker.finish import Finished, Finisher

_LOCK_TROUBLE = ("40P01", "55P03")


def complete(finisher: Finisher, batch: list[Finished]) -> list[Finished]:
    """Complete a group; the jobs to be done again alone.

    Raises psycopg.Error or PoolTimeout when nothing was written for want of a database.
    """
    shared = finisher.shared
    again: list[Finished] = []
    ready: list[Finished] = []
    for item in batch:
        try:
            item.job.lease.begin_finish()
            ready.append(item)
        except LeaseLost:
            again += too_late(finisher, item)
    if not ready:
        return again
    settings = shared.settings
    try:
        with shared.pool.connection(settings.query_timeout_seconds) as conn:
            with conn.budget(settings.finish_timeout_seconds, "finish_timeout_seconds"):
                return again + _complete(finisher, conn, ready)
    finally:
        for item in ready:
            item.job.lease.resume()  # no effect on a lease that has ended


def _complete(finisher: Finisher, conn: Connection, items: list[Finished]) -> list[Finished]:
    store.begin(conn)
    done, xid = store.complete_many(conn, [item.job.lease for item in items])
    completed = [item for item in items if item.job.id in done]
    rest = [item for item in items if item.job.id not in done]
    if xid is None:
        store.rollback(conn)
        return rest
    try:
        tags = _effects(finisher, conn, completed)
        backend = verify(conn, xid)
    except Exception as error:  # an effect's parameters can raise anything
        if isinstance(error, psycopg.Error) and classify(error) is Fault.INFRASTRUCTURE:
            conn.close()
            for item in items:
                item.interruptions += 1
        else:
            store.rollback(conn)
        return items
    try:
        failpoints.reach("before_commit")
        tag = store.commit(conn)
        failpoints.reach("after_commit")
    except psycopg.Error as error:
        if proves_rollback(error):
            return items
        conn.close()
        return [item for item in completed if unknown(finisher, item, backend)] + rest
    if tag != "COMMIT":
        return items
    now = boottime()
    finisher.shared.book.drop_all([item.job.lease for item in completed])
    for item in completed:
        emit("job_succeeded", **item.committed(now))
    if not tags <= effects.PLAIN_TAGS:
        store.discard_all(conn)
    return rest


def _effects(finisher: Finisher, conn: Connection, items: list[Finished]) -> set[str]:
    """Run the recorded effects, equal statements together; the kinds of statements they were."""
    tags: set[str] = set()
    alike: dict[str, list[Finished]] = {}
    for item in items:
        query = effects.together(item.effects)
        if query is not None:
            alike.setdefault(query, []).append(item)
        elif item.effects:
            with _watching(finisher, [item]):
                tags |= effects.run(conn, item.effects)
    for query, group in alike.items():
        rows = [item.effects[0][1] or () for item in group]
        with _watching(finisher, group):
            tags |= effects.run_together(conn, query, rows)
    return tags


@contextmanager
def _watching(finisher: Finisher, items: list[Finished]) -> Iterator[None]:
    """Let kinds whose effects wait for locks finish by themselves for a while."""
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate in _LOCK_TROUBLE:
            for item in items:
                finisher.alone(item.job.kind)
        raise


def verify(conn: Connection, xid: str) -> store.Backend:
    """The backend of a transaction that is healthy and still the one with the completion.

    Raises psycopg.Error, and `TransactionBroken` when it is not.
    """
    if conn.info.transaction_status is TransactionStatus.INTRANS:
        found, backend = store.verify_transaction(conn)
        if found == xid:
            return backend
    raise TransactionBroken("an effect ended the transaction it belongs to")


def succeeded(finisher: Finisher, item: Finished) -> None:
    """Acknowledged: the completion and its effects are committed."""
    finisher.shared.book.drop(item.job.lease)
    emit("job_succeeded", **item.committed(boottime()))


def lost(finisher: Finisher, item: Finished) -> None:
    """The fence did not hold: another owns the job, this run leaves no trace but an event."""
    finisher.shared.book.drop(item.job.lease)
    emit("stale_finish", "warning", **item.job.facts())
    emit("job_abandoned", "warning", reason="lease_lost", **item.facts)


def too_late(finisher: Finisher, item: Finished) -> list[Finished]:
    """The lease ended before the completion was begun; the item again if it is to be given back.

    Past its local deadline the row is most likely still ours: no attempt is charged for that.
    """
    lease = item.job.lease
    if lease.lost or not lease.overdue:
        lost(finisher, item)
        return []
    shared = finisher.shared
    item.outcome = decide(item.job, Ending(None, stop=shared.stop_word()), shared.policy)
    return [item]


def unknown(finisher: Finisher, item: Finished, backend: store.Backend) -> bool:
    """Resolve one job of a group whose COMMIT went unanswered; True: do it again."""
    emit("finish_unknown", "warning", **item.job.facts())
    answer = resolve(finisher.shared, item.job.lease, backend)
    emit("finish_resolved", outcome=answer.value, **item.job.facts())
    if answer is Answer.ROLLED_BACK:
        item.interruptions += 1
        return True
    if answer is Answer.COMMITTED:
        succeeded(finisher, item)
    elif answer is Answer.LOST:
        lost(finisher, item)
    else:
        finisher.shared.book.drop(item.job.lease)
        emit("job_abandoned", "warning", reason="unknown", **item.facts)
    return False
