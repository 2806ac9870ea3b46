"""Putting many jobs in: arrays in one statement, or a COPY stream for real volumes.

Floor 2; imports postgres, jobs. Both are all or nothing and leave the caller's transaction usable:
inside a transaction they work in a savepoint, on a connection in autocommit in one of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from reliable_worker.enqueue import payload as payloads
from reliable_worker.enqueue.enqueue import (
    TRIES,
    NewJob,
    check_stored_size,
    prepare,
    same_or_conflict,
    vanishing_key,
)
from reliable_worker.jobs.errors import InvalidJob
from reliable_worker.jobs.job import Enqueued
from reliable_worker.postgres import catalog
from reliable_worker.postgres.catalog import NewRow

# A statement of 500 small jobs takes some 20 ms, well inside any statement_timeout; larger ones
# gain nothing. Payloads near the limit are bounded by their sum instead.
_ROWS = 500
_BYTES = 8 * 1024 * 1024


def enqueue_many(conn: psycopg.Connection[Any], jobs: Iterable[NewJob]) -> list[Enqueued]:
    """Enqueue jobs in the caller's transaction; one answer per job, in order.

    All are stored or none is. The key rule is that of `enqueue`, also between two of the jobs: the
    second with a key is "existing", or a conflict. They run in the order given, where queue, kind
    and priority are alike.

    Raises InvalidJob, whose line says which job (counted from 0), KeyConflict, psycopg.Error.
    """
    rows = list(_prepared(jobs))
    answers: list[Enqueued | None] = [None] * len(rows)
    with _all_or_nothing(conn):
        now = catalog.clock(conn)
        # They are inserted in the order of their keys, so their instants keep the order given:
        # a microsecond apart, all before now.
        rows = [_timed(row, now, i - len(rows)) for i, row in enumerate(rows)]
        # In the order of the keys over all chunks, so that two batches cannot deadlock.
        order = sorted(range(len(rows)), key=lambda i: (rows[i].key.encode(), i))
        for chunk in _chunks(order, rows):
            made = _insert(conn, [rows[i] for i in chunk])
            for i, answer in zip(chunk, made, strict=True):
                answers[i] = answer
    return [answer for answer in answers if answer is not None]


def copy_jobs(conn: psycopg.Connection[Any], jobs: Iterable[NewJob]) -> int:
    """Stream jobs in by COPY; returns how many. The fastest way, for hundreds of thousands.

    All are stored or none is. A key that is taken ends it with psycopg's UniqueViolation, also
    when the job would be the same; a payload that jsonb prints beyond the limit with its
    CheckViolation. `jobs` may be a generator: nothing is gathered in memory.

    Raises InvalidJob, whose line says which job (counted from 0), psycopg.Error.
    """
    with _all_or_nothing(conn):
        now = catalog.clock(conn)
        return catalog.copy_in(conn, (_timed(row, now) for row in _prepared(jobs)))


def _prepared(jobs: Iterable[NewJob]) -> Iterator[NewRow]:
    for position, job in enumerate(jobs):
        try:
            yield prepare(job)
        except InvalidJob as error:
            raise InvalidJob(f"job {position}: {error}") from None


def _timed(row: NewRow, now: datetime, microseconds: int = 0) -> NewRow:
    """The row with its instant; one that names an instant keeps it."""
    if row.available_at is not None:
        return row
    shift = timedelta(seconds=row.delay_seconds, microseconds=microseconds)
    return replace(row, available_at=now + shift)


def _chunks(order: Sequence[int], rows: Sequence[NewRow]) -> Iterator[Sequence[int]]:
    start = size = 0
    for end, i in enumerate(order):
        size += len(rows[i].payload)
        if end > start and (end - start >= _ROWS or size > _BYTES):
            yield order[start:end]
            start, size = end, len(rows[i].payload)
    if start < len(order):
        yield order[start:]


def _insert(conn: psycopg.Connection[Any], rows: Sequence[NewRow]) -> list[Enqueued]:
    answers: dict[int, Enqueued] = {}
    open_ = list(range(len(rows)))
    for _ in range(TRIES):
        made = catalog.insert_many(conn, [rows[i] for i in open_], payloads.MAX_PAYLOAD_BYTES)
        seen: set[int] = set()
        taken = []
        for i, row in zip(open_, made, strict=True):
            check_stored_size(row.payload_bytes, payloads.MAX_PAYLOAD_BYTES)
            if row.id is None or row.state is None or row.id in seen:
                taken.append(i)
            else:
                seen.add(row.id)
                answers[i] = Enqueued(row.id, row.state, "new")
        existing = catalog.find_existing(conn, [rows[i] for i in taken]) if taken else {}
        for place, i in enumerate(taken):
            if place in existing:
                answers[i] = same_or_conflict(existing[place])
        open_ = [i for i in taken if i not in answers]
        if not open_:
            return [answers[i] for i in range(len(rows))]
    raise vanishing_key()


@contextmanager
def _all_or_nothing(conn: psycopg.Connection[Any]) -> Iterator[None]:
    if conn.autocommit or conn.info.transaction_status is not TransactionStatus.IDLE:
        with conn.transaction():
            yield
        return
    # The first statement begins the caller's transaction. transaction() would commit it at its
    # end, and that is the caller's to do; undoing it all is ours, since all of it is ours.
    try:
        yield
    except BaseException:
        conn.rollback()
        raise
