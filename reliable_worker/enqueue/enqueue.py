"""Putting one job in: the first step of its life, inside the caller's own transaction.

Floor 2; imports postgres, jobs. What cannot be stored or could not be run is refused before the
first statement, so that a refusal never costs the caller the transaction; nothing here commits.

An idempotency key names a job for ever, and is bound to its kind and payload: the same job again
is found ("existing"), another one under that key is a KeyConflict. The comparison is the
database's own equality of jsonb on the living row: order and spelling of fields do not count.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from reliable_worker.enqueue import payload as payloads
from reliable_worker.jobs.errors import InvalidJob, KeyConflict
from reliable_worker.jobs.job import Enqueued
from reliable_worker.postgres import catalog
from reliable_worker.postgres.catalog import NewRow

DEFAULT_QUEUE = "default"
DEFAULT_PRIORITY = 5
DEFAULT_MAX_ATTEMPTS = 5

_KEY_BYTES = 512  # these limits are the table's CHECKs
_NAME_BYTES = 128
_PRIORITIES = range(10)
_MAX_ATTEMPTS = 2**31 - 1  # an int of PostgreSQL
# A hundred years: a later delay is a slip of units, and may leave the range of a timestamp.
_MAX_DELAY = timedelta(days=36_525)
# A key found taken and then gone was pruned in between; that it happens three times running to
# one key means that something deletes jobs as fast as they come.
TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job to be: what `enqueue_many` and `copy_jobs` take.

    `key` None is a fresh UUID. `run_at` is an aware datetime, or a timedelta from now by the
    database's clock; None is now. Lower `priority` runs first, 0 to 9.
    """

    kind: str
    payload: Any
    key: str | None = None
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    run_at: datetime | timedelta | None = None
    max_attempts: int = DEFAULT_MAX_ATTEMPTS


def enqueue(
    conn: psycopg.Connection[Any],
    kind: str,
    payload: Any,
    key: str | None = None,
    *,
    queue: str = DEFAULT_QUEUE,
    priority: int = DEFAULT_PRIORITY,
    run_at: datetime | timedelta | None = None,
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
) -> Enqueued:
    """Enqueue one job in the caller's transaction, which is neither begun nor committed here.

    `payload` is what JSON can say: dicts with text keys, lists, tuples, dataclasses, texts,
    numbers, booleans, None; the other arguments are those of `NewJob`.

    Raises InvalidJob (nothing was sent), KeyConflict (nothing was stored, the transaction goes
    on), psycopg.Error.
    """
    job = NewJob(
        kind=kind,
        payload=payload,
        key=key,
        queue=queue,
        priority=priority,
        run_at=run_at,
        max_attempts=max_attempts,
    )
    return insert(conn, prepare(job))


def prepare(
    job: NewJob, *, text: str | None = None, max_payload_bytes: int = payloads.MAX_PAYLOAD_BYTES
) -> NewRow:
    """The row of a job, everything about it checked. `text` is the payload where it is JSON text
    already, stored digit by digit as it came. Raises InvalidJob."""
    if text is None:
        text = payloads.encode(job.payload, max_payload_bytes)
    else:
        text = payloads.check_text(text, max_payload_bytes)
    available_at, delay_seconds = _check_run_at(job.run_at)
    return NewRow(
        kind=check_name("kind", job.kind, _NAME_BYTES),
        payload=text,
        key=str(uuid.uuid4()) if job.key is None else check_name("key", job.key, _KEY_BYTES),
        queue=check_name("queue", job.queue, _NAME_BYTES),
        priority=_check_number("priority", job.priority, _PRIORITIES[0], _PRIORITIES[-1]),
        available_at=available_at,
        delay_seconds=delay_seconds,
        max_attempts=check_max_attempts(job.max_attempts),
    )


def insert(
    conn: psycopg.Connection[Any],
    row: NewRow,
    max_payload_bytes: int = payloads.MAX_PAYLOAD_BYTES,
) -> Enqueued:
    """Store a prepared row, or find the job that has its key. Raises as `enqueue` does."""
    for _ in range(TRIES):
        made = catalog.insert(conn, row, max_payload_bytes)
        check_stored_size(made.payload_bytes, max_payload_bytes)
        if made.id is not None and made.state is not None:
            return Enqueued(made.id, made.state, "new")
        existing = catalog.find_existing(conn, [row]).get(0)
        if existing is not None:
            return same_or_conflict(existing)
    raise vanishing_key()


def same_or_conflict(existing: catalog.Existing) -> Enqueued:
    """The answer for a key that is taken. Raises KeyConflict."""
    if not existing.same:
        raise KeyConflict(existing.id, existing.kind)
    return Enqueued(existing.id, existing.state, "existing")


def vanishing_key() -> InvalidJob:
    """What to raise when a key is taken at every INSERT and free at every look."""
    return InvalidJob(
        f"key was taken and freed again {TRIES} times: jobs of that key are being deleted,"
        " or the transaction's snapshot is older than the job; try again"
    )


def check_stored_size(size: int, limit: int) -> None:
    """Refuse a payload that jsonb prints longer than it was given. Raises InvalidJob."""
    if size > limit:
        raise InvalidJob(
            f"payload has {size} bytes as PostgreSQL prints it, more than {limit}:"
            " store the data elsewhere and enqueue its name"
        )


def check_name(field: str, value: object, limit: int = _NAME_BYTES) -> str:
    """A text of 1 to `limit` bytes that PostgreSQL can store. Raises InvalidJob."""
    if not isinstance(value, str):
        raise InvalidJob(f"{field} must be a text, not {type(value).__name__}")
    if "\0" in value:
        raise InvalidJob(f"{field} holds a NUL character, which PostgreSQL cannot store")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidJob(f"{field} holds a lone surrogate, which is no Unicode text") from None
    if not 1 <= size <= limit:
        raise InvalidJob(f"{field} must have 1 to {limit} bytes in UTF-8, not {size}")
    return value


def check_max_attempts(value: object) -> int:
    """A number of attempts the column can hold. Raises InvalidJob."""
    return _check_number("max_attempts", value, 1, _MAX_ATTEMPTS)


def _check_number(field: str, value: object, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidJob(f"{field} must be a whole number, not {type(value).__name__}")
    if not least <= value <= most:
        raise InvalidJob(f"{field} must be {least} to {most}")
    return value


def _check_run_at(run_at: object) -> tuple[datetime | None, float]:
    """(available_at, delay_seconds) of a row. Raises InvalidJob."""
    if run_at is None:
        return None, 0.0
    if isinstance(run_at, timedelta):
        if not timedelta(0) <= run_at <= _MAX_DELAY:
            raise InvalidJob(f"run_at must be 0 to {_MAX_DELAY.days} days from now")
        return None, run_at.total_seconds()
    if not isinstance(run_at, datetime):
        raise InvalidJob(f"run_at must be a datetime or a timedelta, not {type(run_at).__name__}")
    if run_at.tzinfo is None or run_at.utcoffset() is None:
        raise InvalidJob("run_at must have a time zone, like datetime.now(UTC): it is an instant")
    try:
        return run_at.astimezone(UTC), 0.0
    except OverflowError:
        raise InvalidJob("run_at must be in the years 1 to 9999, in UTC") from None
