"""Why is this job waiting? Ordered checks, each with what to do about it.

Floor 1; imports `operators`, `catalog`, `store` and settings. One engine for the command line, its
JSON and whatever else asks. Reads only, and a bounded number of rows. On a job's way: beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from reliable_worker.postgres import catalog, operators, store
from reliable_worker.postgres.catalog import NewRow, every, one, times
from reliable_worker.postgres.database import Connection
from reliable_worker.postgres.operators import Process
from reliable_worker.settings import Settings

# "Behind 10,000 jobs" says all that is to be said of more.
MOST_AHEAD = 10_000
# Kinds named in a sentence before it says "and others".
_NAMED = 8


@dataclass(frozen=True, slots=True)
class Answer:
    """One reason: the check's name, a sentence, and what to do about it."""

    check: str
    text: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """A job and why it stands where it does, the weightiest reason first."""

    id: int
    state: str
    queue: str
    kind: str
    answers: list[Answer]


@dataclass(frozen=True, slots=True)
class _Job:
    """See `explain_job.sql`."""

    id: int
    state: str
    kind: str
    queue: str
    priority: int
    attempts: int
    max_attempts: int
    crashes: int
    snoozes: int
    last_error: str | None
    lease_owner: str | None
    available_at: datetime
    due_seconds: float
    lease_seconds: float | None
    held_seconds: float | None
    ended_at: datetime | None


def explain(conn: Connection, settings: Settings, job_id: int) -> Explanation | None:
    """Why the job stands where it does; None when there is no such job. Raises psycopg.Error."""
    rows = every(conn, "explain_job", (job_id,))
    if not rows:
        return None
    job = _Job(*times(rows[0]))
    checks = {
        "ready": _waiting,
        "running": _running,
        "dead": _dead,
        "cancelled": _cancelled,
        "succeeded": _succeeded,
    }
    answers = list(checks[job.state](conn, settings, job))
    return Explanation(job.id, job.state, job.queue, job.kind, answers)


def explain_key(
    conn: Connection, settings: Settings, key: str, kind: str | None, payload: str | None
) -> Explanation | None:
    """The same for the job that holds a key; a kind or payload that differs is the first reason."""
    (holder, *_), before = _holding(conn, key), []
    if holder is None:
        return None
    found = explain(conn, settings, holder)
    if found is None:
        return None
    if kind is not None or payload is not None:
        row = NewRow(kind or found.kind, payload or "{}", key, "default", 5, None, 0.0, 1)
        held = catalog.find_existing(conn, [row])[0]
        if held.kind != row.kind or (payload is not None and not held.same):
            what = "kind" if held.kind != row.kind else "payload"
            before.append(
                Answer(
                    "key",
                    f"key conflict: the key is that of job {holder}, of kind {held.kind!r}; one of"
                    f" another {what} under it is refused",
                    "enqueue under a key of its own: a key names one job for ever",
                )
            )
    return Explanation(found.id, found.state, found.queue, found.kind, [*before, *found.answers])


def _holding(conn: Connection, key: str) -> list[int | None]:
    filters = operators.Filters(key=key)
    return [job.id for job in operators.list_jobs(conn, filters, limit=1).jobs] or [None]


def _waiting(conn: Connection, settings: Settings, job: _Job) -> Iterator[Answer]:
    """The checks of a ready job, in the order in which they hold it back."""
    pause = operators.paused(conn).get(job.queue)
    if pause is not None:
        until = f"until {_instant(pause.until)}" if pause.until else "until it is resumed"
        yield Answer(
            "paused",
            f"queue {job.queue!r} is paused {until}, since {_instant(pause.since)}",
            f"reliable-worker queues resume {job.queue}",
        )
    if job.due_seconds > 0 and not _failed(job):
        how = "its handler snoozed it" if job.snoozes else "it was enqueued for later"
        yield Answer(
            "scheduled",
            f"not due before {_instant(job.available_at)}, in {_span(job.due_seconds)}: {how}",
            "wait; or enqueue it again under another key, due now",
        )
    if job.attempts >= job.max_attempts:
        yield Answer(
            "exhausted",
            f"its attempts are used up ({job.attempts} of {job.max_attempts}), so nobody claims"
            f" it; the sweep buries it within {_span(settings.sweep_seconds)}",
            f"then reliable-worker jobs retry {job.id}; a client must not write attempts itself",
        )
    if job.due_seconds > 0 and _failed(job):
        yield Answer(
            "backoff",
            f"attempt {job.attempts} of {job.max_attempts} did not succeed; the next is due at"
            f" {_instant(job.available_at)}, in {_span(job.due_seconds)}: {_error(job)}",
            "wait; or mend the cause of that error first",
        )
    workers = operators.alive(conn)
    able = [each for each in workers if each.serves(job.queue, job.kind)]
    if not able:
        yield _nobody(job, workers)
    if job.crashes:
        yield Answer(
            "quarantine",
            f"its process died {_times(job.crashes)} while running it, so it runs alone in a"
            f" quarantine process, and is dead after {settings.max_crashes}: {_error(job)}",
            f"look for that cause in the log; reliable-worker jobs cancel {job.id} keeps it from"
            " running again",
        )
    yield from _locked(conn, job)
    if job.due_seconds <= 0 and not job.crashes and job.attempts < job.max_attempts and able:
        yield _ahead(conn, settings, job, able, pause is not None)


def _failed(job: _Job) -> bool:
    return not job.snoozes and (job.attempts > 0 or job.last_error is not None)


def _nobody(job: _Job, workers: Sequence[Process]) -> Answer:
    what = f"kind {job.kind!r} in queue {job.queue!r}"
    if not workers:
        text = f"no worker is alive, so nobody runs {what}"
        return Answer("no worker", text, "start one: systemctl start reliable-worker")
    known = [each for each in workers if job.kind in each.kinds]
    where = ", ".join(sorted({f"{each.host}/{each.pid}" for each in workers})[:_NAMED])
    if known:
        queues = sorted({queue for each in known for queue in each.queues})
        text = f"no live worker serves queue {job.queue!r}: those that know kind {job.kind!r}"
        text += f" serve {_list(queues)}"
        return Answer("no worker", text, f"start one with --queue {job.queue}")
    kinds = sorted({kind for each in workers for kind in each.kinds})
    return Answer(
        "no worker",
        f"no live worker knows kind {job.kind!r}: alive are {where}, and they know {_list(kinds)}",
        f"deploy an application with a handler for {job.kind!r} (--app), or cancel the job:"
        f" reliable-worker jobs cancel {job.id}",
    )


def _ahead(
    conn: Connection, settings: Settings, job: _Job, able: Sequence[Process], paused: bool
) -> Answer:
    """Its place in the line, and how long that takes at the present pace."""
    places = [
        place
        for place in store.combinations(conn)
        if place.priority < job.priority
        and any(each.serves(place.queue, place.kind) for each in able)
    ]
    columns = (
        [place.queue for place in places],
        [place.kind for place in places],
        [place.priority for place in places],
    )
    ahead = int(one(conn, "explain_ahead", (job.id, *columns, MOST_AHEAD))[0])
    if not ahead:
        soon = "when its queue is resumed" if paused else f"within {_span(settings.poll_seconds)}"
        return Answer(
            "next",
            f"nothing is before it: a free slot takes it {soon}",
            "wait; if it stays, all slots are busy: reliable-worker top, and raise WORKERS",
        )
    ended, seconds = one(conn, "explain_pace", (job.id,))
    number = f"{MOST_AHEAD} or more" if ahead >= MOST_AHEAD else str(ahead)
    jobs = "job" if ahead == 1 else "jobs"
    if ended:
        pace = f"at the present pace ({ended / max(seconds, 1e-3):.3g} a second) that takes about"
        pace += f" {_span(ahead * seconds / ended)}"
    else:
        pace = "none like it has ended in the last minute"
    return Answer(
        "behind",
        f"behind {number} {jobs}; {pace}",
        f"raise WORKERS; or let it pass: reliable-worker jobs reprioritise {job.id} --to 0",
    )


def _running(conn: Connection, settings: Settings, job: _Job) -> Iterator[Answer]:
    boot, _, slot = (job.lease_owner or "").rpartition(".")
    left = job.lease_seconds or 0.0
    held = f"for {_span(job.held_seconds)}" if job.held_seconds is not None else "since an unknown"
    if left < 0:
        push_back = max(job.attempts - 1, 0)
        wait = settings.reap_seconds + push_back
        yield Answer(
            "expired",
            f"its lease ran out {_span(-left)} ago (owner {job.lease_owner}); a live maintenance"
            f" process takes it back and it is claimable within {_span(wait)}",
            "if it stays so, no supervisor is alive: systemctl start reliable-worker",
        )
    else:
        # Those who run it may have another lease than this command's settings: never negative.
        beat = max(settings.lease_seconds - left, 0.0)
        by = next((each for each in operators.alive(conn) if each.boot == boot), None)
        where = f"on {by.host}, pid {by.pid} ({by.role}), slot {slot}" if by else ""
        where = where or f"by {job.lease_owner}, whose process has not said lately that it lives,"
        yield Answer(
            "running",
            f"running {where} {held}, attempt {job.attempts} of {job.max_attempts}; lease for"
            f" another {_span(left)}, last heartbeat {_span(beat)} ago",
            f"wait; or stop it: reliable-worker jobs cancel {job.id}",
        )
    yield from _locked(conn, job, boot)


def _locked(conn: Connection, job: _Job, boot: str = "") -> Iterator[Answer]:
    """Whose transaction holds the row, but for the worker's own that finishes it."""
    for pid, name, account, state, seconds in every(conn, "explain_lock", (job.id,)):
        if boot and name.startswith(f"rw:{boot}:"):
            continue
        yield Answer(
            "locked",
            f"its row is locked by a transaction of {account} (backend {pid}, {name or 'no name'},"
            f" {state}), begun {_span(seconds)} ago",
            f"end that transaction: SELECT pg_terminate_backend({pid})",
        )


def _dead(conn: Connection, settings: Settings, job: _Job) -> Iterator[Answer]:
    who = _who(conn, job, "discard")
    if who:
        text = f"dead: discarded by {who}"
    elif job.crashes >= settings.max_crashes:
        text = f"dead since {_instant(job.ended_at)}: its process died {_times(job.crashes)}"
        text += f" while running it: {_error(job)}"
    else:
        text = f"dead since {_instant(job.ended_at)} after {job.attempts} of {job.max_attempts}"
        text += f" attempts: {_error(job)}"
    yield Answer(
        "dead", text, f"mend the cause, then reliable-worker jobs retry {job.id} (or leave it)"
    )


def _cancelled(conn: Connection, settings: Settings, job: _Job) -> Iterator[Answer]:
    who = _who(conn, job, "cancel")
    by = f" by {who}" if who else f" at {_instant(job.ended_at)}"
    yield Answer("cancelled", f"cancelled{by}", "enqueue it again under another key")


def _succeeded(conn: Connection, settings: Settings, job: _Job) -> Iterator[Answer]:
    yield Answer("succeeded", f"succeeded at {_instant(job.ended_at)}", "nothing is to be done")


def _who(conn: Connection, job: _Job, action: str) -> str | None:
    for found, operator, at in (times(r) for r in every(conn, "explain_action", (job.id,))):
        if found == action:
            return f"{operator} at {_instant(at)}"
    return None


def _error(job: _Job) -> str:
    return job.last_error or "no error is recorded"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _list(names: Sequence[str]) -> str:
    more = " and others" if len(names) > _NAMED else ""
    return ", ".join(map(repr, names[:_NAMED])) + more if names else "none"


def _instant(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}Z" if at else "an unknown time"


def _span(seconds: float) -> str:
    """A duration as people say it."""
    for unit, name in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.1f} s"
