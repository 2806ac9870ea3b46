"""One look at everything that moves: what `top` shows.

Floor 1; imports `operators` and `catalog`. Bounded like all that operators ask, so that it may be
repeated every second or two.
"""

from __future__ import annotations

from dataclasses import dataclass

from reliable_worker.postgres import operators
from reliable_worker.postgres.catalog import every, one
from reliable_worker.postgres.database import Connection
from reliable_worker.postgres.operators import MOST_COUNTED, QueueCounts

_RUNNING_ROWS = 20


@dataclass(frozen=True, slots=True)
class Running:
    """A running job; `where` is host/pid/slot, or its owner's name if its process is unknown."""

    id: int
    kind: str
    queue: str
    attempt: int
    where: str
    held_seconds: float | None
    lease_seconds: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One look. Rates are per second since the look before; None without one, or where a number
    was counted only up to its limit."""

    at: float
    last_id: int
    queues: list[QueueCounts]
    running: list[Running]
    processes: int
    slots: int
    busy: int
    enqueued_rate: float | None = None
    ended_rate: float | None = None


def take(conn: Connection, before: Sample | None = None) -> Sample:
    """Look, and say how fast things went since `before`. Raises psycopg.Error."""
    last_id, at = one(conn, "top_last")
    queues = operators.list_queues(conn)
    alive = {each.boot: each for each in operators.alive(conn)}
    running = []
    for job_id, kind, queue, attempt, owner, held, left in every(
        conn, "top_running", (_RUNNING_ROWS,)
    ):
        boot, _, slot = owner.rpartition(".")
        by = alive.get(boot)
        where = f"{by.host}/{by.pid}/{slot}" if by else owner
        running.append(Running(job_id, kind, queue, attempt, where, held, left))
    enqueued = ended = None
    if before is not None and at > before.at:
        enqueued = max(last_id - before.last_id, 0) / (at - before.at)
        now_open, then_open = _open(queues), _open(before.queues)
        if now_open is not None and then_open is not None:
            ended = max(enqueued - (now_open - then_open) / (at - before.at), 0.0)
    return Sample(
        at=at,
        last_id=last_id,
        queues=queues,
        running=running,
        processes=len(alive),
        slots=sum(each.slots for each in alive.values()),
        busy=sum(queue.running for queue in queues),
        enqueued_rate=enqueued,
        ended_rate=ended,
    )


def _open(queues: list[QueueCounts]) -> int | None:
    """Jobs not over yet; None where one number was counted only up to its limit."""
    total = 0
    for queue in queues:
        waiting = queue.ready + queue.scheduled
        if waiting >= MOST_COUNTED or queue.running + queue.expired >= MOST_COUNTED:
            return None
        total += waiting + queue.running + queue.expired
    return total
