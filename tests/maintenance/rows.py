"""Rows of `jobs` as tests want them, written by plain SQL, and read back."""

from __future__ import annotations

import uuid
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

BOOT = "a" * 32
OTHER_BOOT = "b" * 32

Row = dict[str, Any]


def add(conn: psycopg.Connection, **columns: object) -> int:
    """Insert a job with these columns; its id."""
    given: Row = {"idempotency_key": uuid.uuid4().hex, "payload": "{}", **columns}
    statement = sql.SQL("INSERT INTO jobs ({}) VALUES ({}) RETURNING id").format(
        sql.SQL(", ").join(map(sql.Identifier, given)),
        sql.SQL(", ").join(sql.Placeholder() * len(given)),
    )
    row = conn.execute(statement, list(given.values())).fetchone()
    assert row is not None
    return int(row[0])


def add_running(
    conn: psycopg.Connection,
    owner: str = f"{BOOT}.0",
    *,
    lease_seconds: float = 30.0,
    claimed_seconds_ago: float = 0.0,
    **columns: object,
) -> int:
    """Insert a job as a claim leaves it: attempt 1 and fence 1 unless `columns` say otherwise.

    A negative `lease_seconds` makes a lease that has run out.
    """
    job = add(conn, **columns)
    conn.execute(
        "UPDATE jobs SET state = 'running', lease_owner = %s,"
        " lease_until = clock_timestamp() + make_interval(secs => %s),"
        " claimed_at = clock_timestamp() - make_interval(secs => %s),"
        " attempts = CASE WHEN attempts = 0 THEN 1 ELSE attempts END,"
        " fence = CASE WHEN fence = 0 THEN 1 ELSE fence END WHERE id = %s",
        (owner, lease_seconds, claimed_seconds_ago, job),
    )
    return job


def get(conn: psycopg.Connection, job: int) -> Row:
    """The row, with `delay`: seconds until it is available, by the database's clock."""
    with conn.cursor(row_factory=dict_row) as cursor:
        cursor.execute(
            "SELECT *, extract(epoch FROM available_at - clock_timestamp())::float8 AS delay"
            " FROM jobs WHERE id = %s",
            (job,),
        )
        row = cursor.fetchone()
    assert row is not None
    return row


def change(before: Row, after: Row) -> Row:
    """The columns that differ, `delay` apart, with their new values."""
    return {name: after[name] for name in after if name != "delay" and before[name] != after[name]}
