"""The statements of maintenance: one typed function each.

On a job's way: taking running jobs from holders that are gone, burying what cannot run, counting,
and waking those who could claim. Floor 1: imports `statements` and `database`. Every function runs
its statement of the same name under the budget the caller has set, in autocommit, and raises
psycopg.Error. Times are epoch seconds of the database's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reliable_worker.jobs.retry import Backoff
from reliable_worker.postgres.database import Connection
from reliable_worker.postgres.statements import run

Run = tuple[int, int]
"""(job id, fence): one run of one job."""


@dataclass(frozen=True, slots=True)
class Oldest:
    """What a look at the running rows found."""

    now: float
    claimed_at: float | None
    undated: bool


@dataclass(frozen=True, slots=True)
class Taken:
    """A job taken from its holder: ready again, or dead. `attempt` is the number of that run."""

    job_id: int
    queue: str
    kind: str
    attempt: int
    owner: str
    dead: bool


@dataclass(frozen=True, slots=True)
class Combination:
    """A queue, kind and priority with ready jobs; `due`: a claim would take one."""

    queue: str
    kind: str
    priority: int
    due: bool


@dataclass(slots=True)
class QueueCount:
    """The gauges of one queue."""

    ready: int = 0
    running: int = 0
    expired: int = 0
    dead: int = 0
    oldest_ready_age_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Health:
    """The gauges of the database itself."""

    oldest_transaction_age_seconds: float
    table_live_tuples: dict[str, float]
    table_dead_tuples: dict[str, float]


@dataclass(slots=True)
class Pruned:
    """One slice: rows looked at, the greatest id of them, whether all later rows are too young to
    be deleted, and how many were deleted by state."""

    looked: int = 0
    last: int | None = None
    young: bool = False
    succeeded: int = 0
    cancelled: int = 0
    dead: int = 0


def oldest_running(conn: Connection, since: float, before: float) -> Oldest:
    """The oldest claim still running within [since, before)."""
    ((now, claimed_at, undated),) = run(conn, "oldest_running", (since, before)).fetchall()
    return Oldest(now, claimed_at, undated)


def date_running(conn: Connection) -> int:
    """Give a claim time to running rows without one; how many there were."""
    return len(run(conn, "date_running").fetchall())


def expire(conn: Connection, mark: float, server_age_seconds: float, limit: int) -> list[Taken]:
    """Take at most `limit` jobs whose lease has run out, claimed at `mark` or later."""
    return _taken(conn, "expire", (mark, server_age_seconds, limit))


def sweep(conn: Connection, limit: int) -> int:
    """Bury at most `limit` ready jobs without attempts; how many."""
    return len(run(conn, "sweep", (limit,)).fetchall())


def backends(conn: Connection, boots: Sequence[str], idle_seconds: float) -> set[str]:
    """Those of `boots` that still have a server process at work."""
    return {boot for (boot,) in run(conn, "backends", (list(boots), idle_seconds)).fetchall()}


def obituary_crash(
    conn: Connection, boot: str, started: Sequence[Run], max_crashes: int, error: str
) -> list[Taken]:
    """Free the jobs that were running when their process crashed."""
    return _taken(conn, "obituary_crash", (boot, *_columns(started), max_crashes, error))


def obituary_timeout(
    conn: Connection, boot: str, stuck: Sequence[Run], error: str, backoff: Backoff
) -> list[Taken]:
    """Free the jobs whose stuck threads cost their process its life."""
    delays = (backoff.base_seconds, backoff.max_seconds, backoff.jitter)
    return _taken(conn, "obituary_timeout", (boot, *_columns(stuck), error, *delays))


def obituary_refund(conn: Connection, boot: str, judged: Sequence[Run], mark: float) -> list[Taken]:
    """Free every job of a dead process but those judged otherwise."""
    return _taken(conn, "obituary_refund", (boot, *_columns(judged), mark))


def obituary_left(conn: Connection, boot: str, mark: float) -> int:
    """How many jobs a dead process still holds."""
    ((left,),) = run(conn, "obituary_left", (boot, mark)).fetchall()
    return int(left)


def claimable(
    conn: Connection,
    kinds: Sequence[str],
    queues: Sequence[str],
    after: tuple[str, str, int],
    limit: int,
) -> list[Combination]:
    """At most `limit` combinations with ready jobs, in order, from the one after `after` on."""
    rows = run(conn, "claimable", (list(kinds), list(queues), *after, limit)).fetchall()
    return [Combination(*row) for row in rows]


def suspects(conn: Connection, kinds: Sequence[str], queues: Sequence[str], limit: int) -> int:
    """How many suspects wait, counted up to `limit`."""
    ((waiting,),) = run(conn, "suspects", (list(kinds), list(queues), limit)).fetchall()
    return int(waiting)


def eligible(conn: Connection, kinds: Sequence[str], queues: Sequence[str], limit: int) -> int:
    """How many jobs could start now, suspects included, counted up to `limit` per index."""
    ((count,),) = run(conn, "eligible", (list(kinds), list(queues), limit)).fetchall()
    return int(count)


def notify(conn: Connection, payload: str) -> None:
    """Wake the processes that listen; `payload` must be below 8,000 bytes."""
    run(conn, "notify", (payload,))


def clock(conn: Connection) -> float:
    """The database's time."""
    ((now,),) = run(conn, "clock").fetchall()
    return float(now)


def census(conn: Connection, mark: float, limit: int) -> dict[str, QueueCount]:
    """The gauges of every queue that has jobs, each number counted up to `limit`.

    Three statements: the numbers are of three moments close together.
    """
    counts: dict[str, QueueCount] = {}
    for queue, ready, age in run(conn, "census_ready", (limit,)).fetchall():
        count = counts.setdefault(queue, QueueCount())
        count.ready, count.oldest_ready_age_seconds = min(ready, limit), age
    for queue, running, expired in run(conn, "census_running", (mark, limit)).fetchall():
        count = counts.setdefault(queue, QueueCount())
        count.running, count.expired = running, expired
    for queue, dead in run(conn, "census_dead", (limit,)).fetchall():
        counts.setdefault(queue, QueueCount()).dead = dead
    return counts


def health(conn: Connection) -> Health:
    """What keeps vacuum from its work, and how much work there is."""
    ((oldest, live, dead),) = run(conn, "health").fetchall()
    return Health(oldest, {"jobs": live}, {"jobs": dead})


Keep = tuple[float | None, float | None, float | None]
"""Seconds to keep succeeded, cancelled and dead jobs; None for ever."""


def prune(conn: Connection, after: int, rows: int, keep: Keep) -> Pruned:
    """Delete what is old enough of the `rows` jobs whose ids follow `after`."""
    (row,) = run(conn, "prune", (after, rows, *keep)).fetchall()
    return Pruned(*row)


def prune_attempts(conn: Connection, keep: float | None, most: int, rows: int) -> int:
    """Delete what is too old, or too much, of the `rows` oldest attempts; how many."""
    ((deleted,),) = run(conn, "prune_attempts", (keep, most, rows)).fetchall()
    return int(deleted)


def prune_records(conn: Connection, keep: float | None, rows: int, silent_seconds: float) -> int:
    """Forget old operators' actions and worker processes that are gone; how many of both."""
    ((actions, processes),) = run(conn, "prune_records", (keep, rows, silent_seconds)).fetchall()
    return int(actions + processes)


def _taken(conn: Connection, name: str, params: Sequence[object]) -> list[Taken]:
    return [Taken(*row) for row in run(conn, name, params).fetchall()]


def _columns(runs: Sequence[Run]) -> tuple[list[int], list[int]]:
    """Runs as the two arrays that the statements unnest."""
    return [job_id for job_id, _ in runs], [fence for _, fence in runs]
