"""What operators look at and change: lists with filters, cancel and its like, pauses, timelines.

Floor 1; imports `catalog`, `upkeep` and jobs. On a job's way: beside it. Changes are fenced by the
state they are allowed in, and each is committed together with its audit row. All raise
psycopg.Error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Literal

from reliable_worker.jobs.deadline import Deadline
from reliable_worker.postgres import upkeep
from reliable_worker.postgres.catalog import AnyConnection, Listed, every, one, times
from reliable_worker.postgres.database import Connection

Action = Literal["retry", "cancel", "discard", "reprioritise"]
# In which states each action finds its jobs.
ACTS_ON: Mapping[Action, tuple[str, ...]] = {
    "retry": ("dead",),
    "cancel": ("ready", "running"),
    "discard": ("ready",),
    "reprioritise": ("ready",),
}
# How many jobs one transaction changes: some 10 ms of locks.
BATCH_ROWS = 500
# So many jobs of a state are listed from that state's index; where there are more, the newest of
# them are never far from the newest of all.
FEW_ROWS = 5_000
# One look of a listing: 20,000 rows by the primary key take some 10 ms.
LOOK_ROWS = 20_000
# A listing goes on looking for so long, then says where it stopped.
LOOK_SECONDS = 0.1
# A queue's numbers are counted no further: what stands at 10,000 has said all an operator needs.
MOST_COUNTED = 10_000
# A worker process says every 10 s that it lives (worker/presence.py): it may miss two.
ALIVE_SECONDS = 30.0
_TIMELINE_ROWS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Which jobs; None for all. `error` is a part of last_error; ages are those of created_at."""

    state: str | None = None
    queue: str | None = None
    kind: str | None = None
    key: str | None = None
    error: str | None = None
    older_seconds: float | None = None
    newer_seconds: float | None = None

    def given(self) -> dict[str, object]:
        """Those that are set, without the key, which is nobody's business in an audit."""
        return {k: v for k, v in asdict(self).items() if v is not None and k != "key"}


@dataclass(frozen=True, slots=True)
class Page:
    """Some jobs, newest first; `before`: where to go on, None when there is nothing more."""

    jobs: list[Listed]
    before: int | None


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a job's timeline: an attempt's end, or an operator's action."""

    what: str
    at: datetime
    attempt: int | None
    owner: str | None
    seconds: float | None
    outcome: str
    error: str | None


@dataclass(frozen=True, slots=True)
class Pause:
    """A paused queue; `until` None: until it is resumed."""

    queue: str
    since: datetime
    until: datetime | None


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """A queue with its numbers of jobs, each counted up to MOST_COUNTED."""

    queue: str
    ready: int
    scheduled: int
    suspects: int
    running: int
    expired: int
    dead: int
    oldest_ready_age_seconds: float | None
    paused: bool
    paused_until: datetime | None


@dataclass(frozen=True, slots=True)
class Process:
    """A live worker process, by its own last word. `queues` empty: every queue."""

    boot: str
    host: str
    pid: int
    role: str
    slots: int
    kinds: list[str]
    queues: list[str]
    started_at: datetime
    seen_seconds: float

    def serves(self, queue: str, kind: str) -> bool:
        """Whether it would run such a job."""
        return kind in self.kinds and (not self.queues or queue in self.queues)


def list_jobs(
    conn: AnyConnection, filters: Filters, *, before: int | None = None, limit: int
) -> Page:
    """The newest jobs that fit, under the id `before`.

    Bounded whatever the table holds: a page may have fewer jobs than asked for, or none, and yet
    say where to go on.
    """
    if filters.key is not None:
        return Page(_list(conn, filters, before, None, limit), None)
    few = _list_few(conn, filters, before, limit)
    if few is not None:
        return Page(few, few[-1].id if len(few) == limit else None)
    found: list[Listed] = []
    deadline = Deadline(LOOK_SECONDS, "jobs list")
    while True:
        rows = every(conn, "jobs_floor", (before, LOOK_ROWS))
        floor = rows[0][0] if rows else None
        found += _list(conn, filters, before, floor, limit - len(found))
        if len(found) == limit:
            return Page(found, found[-1].id)
        if floor is None or deadline.passed:
            return Page(found, floor)
        before = floor


def _list(
    conn: AnyConnection, f: Filters, before: int | None, floor: int | None, limit: int
) -> list[Listed]:
    params = (f.state, f.queue, f.kind, before, limit, floor, f.key, f.error)
    rows = every(conn, "jobs_list", (*params, f.older_seconds, f.newer_seconds))
    return [Listed(*times(row)) for row in rows]


def _list_few(
    conn: AnyConnection, f: Filters, before: int | None, limit: int
) -> list[Listed] | None:
    """The page where few jobs are in the state asked for; None where they are many."""
    if f.state not in ("ready", "running", "dead"):
        return None
    params = (f.state, f.queue, f.kind, before, limit, FEW_ROWS, f.error)
    rows = every(conn, "jobs_list_open", (*params, f.older_seconds, f.newer_seconds))
    if rows[0][0] > FEW_ROWS:
        return None
    return [Listed(*times(row[1:])) for row in rows if row[1] is not None]


def pick(
    conn: AnyConnection, action: Action, filters: Filters, limit: int
) -> Iterator[list[Listed]]:
    """The jobs that fit and that `action` can change, at most `limit`, in batches."""
    states = [s for s in ACTS_ON[action] if filters.state in (None, s)]
    for state in states:
        before: int | None = None
        while limit > 0:
            wanted = min(BATCH_ROWS, limit)
            page = list_jobs(conn, replace(filters, state=state), before=before, limit=wanted)
            found = [job for job in page.jobs if job.state == state]
            limit -= len(found)
            if found:
                yield found
            before = page.before
            if before is None:
                break


def change(
    conn: AnyConnection,
    action: Action,
    ids: Sequence[int],
    operator: str,
    details: Mapping[str, object],
    *,
    priority: int | None = None,
) -> dict[int, str]:
    """Do `action` to the jobs that are in a state for it: the state each of them had, by id."""
    params: list[object] = [list(ids), operator, json.dumps(details)]
    if action == "reprioritise":
        return dict(every(conn, "job_reprioritise", [*params, priority]))
    statement = {"retry": "job_retry", "cancel": "job_cancel", "discard": "job_discard"}[action]
    return dict(every(conn, statement, params))


def timeline(conn: AnyConnection, job_id: int) -> list[Step]:
    """What became of a job's attempts, and what operators did with it, oldest first."""
    return [Step(*times(row)) for row in every(conn, "job_timeline", (job_id, _TIMELINE_ROWS))]


def pause(conn: AnyConnection, queue: str, seconds: float | None, operator: str) -> datetime | None:
    """Pause a queue for that long, None until it is resumed; when the pause will end."""
    end: datetime | None = times(one(conn, "queue_pause", (queue, seconds, operator)))[0]
    return end


def resume(conn: Connection, queue: str, operator: str) -> bool:
    """End a pause and wake idle workers; False: the queue was not paused."""
    resumed = bool(every(conn, "queue_resume", (queue, operator)))
    if resumed:
        upkeep.notify(conn, "[]")
    return resumed


def paused(conn: AnyConnection) -> dict[str, Pause]:
    """The queues that are paused now."""
    return {row[0]: Pause(*times(row)) for row in every(conn, "queues_paused")}


def alive(conn: AnyConnection) -> list[Process]:
    """The live worker processes."""
    return [Process(*times(row)) for row in every(conn, "workers_alive", (ALIVE_SECONDS,))]


def list_queues(conn: Connection) -> list[QueueCounts]:
    """Every queue with unfinished or dead jobs, or that is paused."""
    # every running row: this is asked by hand, not every few seconds
    census = upkeep.census(conn, float("-inf"), MOST_COUNTED)
    pauses = paused(conn)
    names = sorted({*census, *pauses})
    split = {
        queue: (scheduled, suspects)
        for queue, scheduled, suspects in every(conn, "queues_split", (names, MOST_COUNTED))
    }
    found = []
    for name in names:
        count, (scheduled, suspects) = census.get(name, upkeep.QueueCount()), split[name]
        pause = pauses.get(name)
        found.append(
            QueueCounts(
                queue=name,
                ready=count.ready - min(scheduled, count.ready),
                scheduled=min(scheduled, MOST_COUNTED),
                suspects=suspects,
                running=count.running - count.expired,
                expired=count.expired,
                dead=count.dead,
                oldest_ready_age_seconds=count.oldest_ready_age_seconds or None,
                paused=pause is not None,
                paused_until=pause.until if pause else None,
            )
        )
    return found
