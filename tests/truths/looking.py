"""Looking at jobs and their evidence from outside, and waiting until they are as they should be."""

from collections.abc import Iterable
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

import psycopg

from tests.fixtures.waiting import wait_until

Connection = psycopg.Connection[Any]


class Row(NamedTuple):
    """What the tests look at of a job."""

    state: str
    attempts: int
    fence: int
    crashes: int
    refunds: int
    owner: str | None
    error: str | None


def row(conn: Connection, job_id: int) -> Row:
    """The job as it is now."""
    found = conn.execute(
        "SELECT state, attempts, fence, crashes, refunds, lease_owner, last_error"
        " FROM jobs WHERE id = %s",
        (job_id,),
    ).fetchone()
    assert found is not None, f"job {job_id} is gone"
    return Row(*found)


def wait_state(conn: Connection, job_id: int, state: str, seconds: float) -> Row:
    """The job once its state is `state`."""
    wait_until(
        lambda: row(conn, job_id).state == state,
        seconds,
        f"job {job_id} {state}; it is {row(conn, job_id)}",
    )
    return row(conn, job_id)


def states(conn: Connection) -> dict[str, int]:
    """How many jobs there are in each state."""
    return dict(conn.execute("SELECT state, count(*) FROM jobs GROUP BY state").fetchall())


def wait_all(conn: Connection, state: str, seconds: float) -> None:
    """Return once every job is `state`."""
    wait_until(lambda: set(states(conn)) == {state}, seconds, f"every job {state}")


def wait_states(conn: Connection, wanted: dict[str, int], seconds: float) -> None:
    """Return once there are so many jobs in each state and none in another."""
    try:
        wait_until(lambda: states(conn) == wanted, seconds, f"jobs {wanted}")
    except AssertionError as error:
        raise AssertionError(f"{error}; they are {states(conn)}") from None


def effects(conn: Connection, job_id: int) -> int:
    """How often the job's effect was committed."""
    return int(scalar(conn, "SELECT count(*) FROM effects WHERE job_id = %s", job_id))


def scalar(conn: Connection, query: str, *params: object) -> Any:
    """The one value of the one row."""
    found = conn.execute(query, params).fetchone()
    assert found is not None
    return found[0]


def starts(conn: Connection, job_id: int | None = None) -> int:
    """How many runs have begun, of one job or of all."""
    return int(
        scalar(
            conn,
            "SELECT count(*) FROM hist WHERE event = 'start' AND job_id = coalesce(%s, job_id)",
            job_id,
        )
    )


def wait_start(conn: Connection, job_id: int, seconds: float = 20, *, times: int = 1) -> int:
    """The pid of the process in which the job's `times`-th run has begun."""
    wait_until(lambda: starts(conn, job_id) >= times, seconds, f"run {times} of job {job_id} begun")
    return int(
        scalar(
            conn,
            "SELECT pid FROM hist WHERE event = 'start' AND job_id = %s ORDER BY seq"
            " OFFSET %s LIMIT 1",
            job_id,
            times - 1,
        )
    )


def ends(conn: Connection, job_id: int) -> int:
    """How many of its runs have ended by themselves."""
    return int(
        scalar(conn, "SELECT count(*) FROM hist WHERE event = 'end' AND job_id = %s", job_id)
    )


def moves(conn: Connection, job_id: int) -> list[tuple[str, str]]:
    """(from, to) of every change of state, renewals left out."""
    return conn.execute(
        "SELECT old_state, new_state FROM audit"
        " WHERE id = %s AND op = 'UPDATE' AND old_state <> new_state ORDER BY seq",
        (job_id,),
    ).fetchall()


def claims(conn: Connection, job_id: int) -> list[datetime]:
    """When the job was claimed, by the database's clock."""
    rows = conn.execute(
        "SELECT at FROM audit WHERE id = %s AND old_state = 'ready' AND new_state = 'running'"
        " ORDER BY seq",
        (job_id,),
    )
    return [at for (at,) in rows]


def sessions(conn: Connection) -> list[str]:
    """application_name of every session of ours in this database."""
    rows = conn.execute(
        "SELECT application_name FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'rw:%'"
    )
    return [name for (name,) in rows]


def gaps(times: Iterable[datetime]) -> list[float]:
    """Seconds between one and the next."""
    ordered = list(times)
    return [(b - a).total_seconds() for a, b in pairwise(ordered)]
