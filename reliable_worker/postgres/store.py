"""The life of a job in the database: one typed function per statement of the way
claim → renew → complete | retry | bury | release | refund | snooze.

Floor 1: imports jobs and the statements. Each function runs one statement under the connection's
budget, raises psycopg.Error, and says by its result whether the fence held (False, or an id that
is missing: the lease is another's).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg

from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.job import ClaimedJob
from reliable_worker.jobs.lease import Lease
from reliable_worker.postgres import statements

Conn = psycopg.Connection[Any]

# The mark of a scan from the beginning: before the year 1, the earliest a job may be due.
HEAD_US = -(2**56)


class Combination(NamedTuple):
    """One place to claim from."""

    queue: str
    kind: str
    priority: int


@dataclass(frozen=True, slots=True)
class Claim:
    """What a claim brought. `due_seconds`: until the next job is due, None when none waits.

    `empty_us`: when nothing was due, the present in microseconds since 1970.
    """

    jobs: list[ClaimedJob]
    marks: dict[Combination, int]
    due_seconds: float | None
    empty_us: int | None = None


def claim(
    conn: Conn,
    places: Sequence[tuple[Combination, int]],
    owners: Sequence[str],
    *,
    lease_seconds: float,
    margin_seconds: float,
    suspects: bool = False,
) -> Claim:
    """Take one due job per owner at most, from `places` (combination, mark in µs) in turns."""
    sent_at = boottime()
    rows = statements.run(
        conn,
        "claim_suspects" if suspects else "claim",
        (
            [place.queue for place, _ in places],
            [place.kind for place, _ in places],
            [place.priority for place, _ in places],
            [mark for _, mark in places],
            len(owners),
            list(owners),
            lease_seconds,
        ),
    ).fetchall()
    if rows and rows[0][1] is None:
        return Claim([], {}, rows[0][16], rows[0][15])
    jobs: list[ClaimedJob] = []
    marks: dict[Combination, int] = {}
    for row in rows:
        lease = Lease(row[1], row[2], row[3], until=sent_at + lease_seconds - margin_seconds)
        jobs.append(
            ClaimedJob(
                lease=lease,
                key=row[4],
                kind=row[5],
                queue=row[6],
                priority=row[7],
                payload_text=row[8],
                attempt=row[9],
                max_attempts=row[10],
                crashes=row[11],
                refunds=row[12],
                snoozes=row[13],
                wait_seconds=max(0.0, row[14]),
            )
        )
        place = Combination(row[6], row[5], row[7])
        marks[place] = max(marks.get(place, HEAD_US), row[15])
    return Claim(jobs, marks, None)


def combinations(conn: Conn, *, suspects: bool = False) -> list[Combination]:
    """Every (queue, kind, priority) with ready jobs, whether due or not."""
    name = "suspect_combinations" if suspects else "combinations"
    return [Combination(*row) for row in statements.run(conn, name).fetchall()]


def look_below(
    conn: Conn, stretches: Sequence[tuple[Combination, int, int]]
) -> dict[Combination, int]:
    """The oldest due job (µs since 1970) of each (combination, from µs, before µs) that has one."""
    rows = statements.run(
        conn,
        "look_below",
        (
            [place.queue for place, _, _ in stretches],
            [place.kind for place, _, _ in stretches],
            [place.priority for place, _, _ in stretches],
            [since for _, since, _ in stretches],
            [before for _, _, before in stretches],
        ),
    ).fetchall()
    return {Combination(*row[:3]): row[3] for row in rows}


def _arrays(leases: Sequence[Lease]) -> tuple[list[int], list[str], list[int]]:
    return (
        [lease.id for lease in leases],
        [lease.owner for lease in leases],
        [lease.fence for lease in leases],
    )


def renew(conn: Conn, leases: Sequence[Lease], lease_seconds: float) -> set[int]:
    """Renew; the ids renewed. A missing one may only be locked: ask `probe`."""
    rows = statements.run(conn, "renew", (*_arrays(leases), lease_seconds)).fetchall()
    return {row[0] for row in rows}


def probe(conn: Conn, leases: Sequence[Lease]) -> set[int]:
    """The ids whose rows still name this owner and fence."""
    return {row[0] for row in statements.run(conn, "probe", _arrays(leases)).fetchall()}


def complete(conn: Conn, lease: Lease) -> str | None:
    """First statement of a finishing transaction: its xid, or None when the lease is lost."""
    row = statements.run(conn, "complete", (lease.id, lease.owner, lease.fence)).fetchone()
    return None if row is None else row[0]


def complete_many(conn: Conn, leases: Sequence[Lease]) -> tuple[set[int], str | None]:
    """Complete a group: the ids completed and the transaction's xid (None: none completed)."""
    rows = statements.run(conn, "complete_many", _arrays(leases)).fetchall()
    return {row[0] for row in rows}, rows[0][1] if rows else None


def retry(conn: Conn, lease: Lease, delay_seconds: float, error: str) -> bool:
    """Failed, to be tried again later; False: the lease is lost."""
    return _fail(conn, "retry", (lease.id, lease.owner, lease.fence, delay_seconds), error)


def bury(conn: Conn, lease: Lease, error: str) -> bool:
    """Failed for good; False: the lease is lost."""
    return _fail(conn, "bury", (lease.id, lease.owner, lease.fence), error)


def _fail(conn: Conn, name: str, params: tuple[object, ...], error: str) -> bool:
    try:
        return statements.run(conn, name, (*params, error)).rowcount == 1
    except psycopg.errors.UntranslatableCharacter:
        # The database's encoding has not all of these characters. A failure that could not be
        # recorded would hold its lease for ever.
        plain = error.encode("ascii", "replace").decode()
        return statements.run(conn, name, (*params, plain)).rowcount == 1


def release(conn: Conn, leases: Sequence[Lease]) -> set[int]:
    """Give jobs back, each in its place; the ids released."""
    return {row[0] for row in statements.run(conn, "release", _arrays(leases)).fetchall()}


def refund(conn: Conn, lease: Lease, delay_seconds: float) -> bool:
    """Give back after a fault, later and counted; False: the lease is lost."""
    params = (lease.id, lease.owner, lease.fence, delay_seconds)
    return statements.run(conn, "refund", params).rowcount == 1


def snooze(conn: Conn, lease: Lease, delay_seconds: float) -> bool:
    """Later, as the handler asked; False: the lease is lost."""
    params = (lease.id, lease.owner, lease.fence, delay_seconds)
    return statements.run(conn, "snooze", params).rowcount == 1


def held(conn: Conn, boot: str) -> list[tuple[int, str, int]]:
    """(id, owner, fence) of every row running under a boot id."""
    return [tuple(row) for row in statements.run(conn, "held", (boot,)).fetchall()]


class Row(NamedTuple):
    """A row's state as a locking read saw it."""

    state: str
    owner: str | None
    fence: int


def resolve(conn: Conn, job_id: int) -> Row | None:
    """The row behind a lost reply, locked; raises 55P03 while the old backend holds it."""
    row = statements.run(conn, "resolve", (job_id,)).fetchone()
    return None if row is None else Row(*row)


class Backend(NamedTuple):
    """One server process; a pid alone would be used again."""

    pid: int
    started: str


def verify_transaction(conn: Conn) -> tuple[str | None, Backend]:
    """The xid of the transaction this connection is in, and its backend."""
    row = statements.run(conn, "verify_transaction").fetchone()
    assert row is not None  # a function call always answers with one row
    return row[0], Backend(row[1], row[2])


def terminate(conn: Conn, backend: Backend) -> bool:
    """Tell a backend to end; False when it is gone."""
    return statements.run(conn, "terminate_backend", tuple(backend)).fetchone() is not None


def begin(conn: Conn) -> None:
    """Begin a READ COMMITTED transaction."""
    statements.run(conn, "begin")


def commit(conn: Conn) -> str:
    """COMMIT; the tag of the answer, which is ROLLBACK for a failed transaction."""
    return statements.run(conn, "commit").statusmessage or ""


def rollback(conn: Conn) -> None:
    """Give the transaction up."""
    statements.run(conn, "rollback")


def discard_all(conn: Conn) -> None:
    """Return the session to its start-up options."""
    statements.run(conn, "discard_all")
    # The server has forgotten its prepared statements. psycopg learns so only from an answer it
    # looks at, which is that of a statement's first execution, and would execute names that are
    # gone; what it then wants to deallocate is gone as well.
    conn._prepared.clear()
    conn._prepared._to_flush.clear()


def listen(conn: Conn) -> None:
    """Hear notifications on this connection from now on."""
    statements.run(conn, "listen")


def seen(
    conn: Conn,
    boot: str,
    *,
    host: str,
    pid: int,
    role: str,
    slots: int,
    kinds: Sequence[str],
    queues: Sequence[str],
) -> None:
    """This worker process is alive."""
    statements.run(conn, "worker_seen", (boot, host, pid, role, slots, list(kinds), list(queues)))
