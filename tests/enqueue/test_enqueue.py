"""Enqueue: in the caller's transaction, bound to its key, and without harm when it is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

import reliable_worker as rw
from reliable_worker.enqueue.enqueue import prepare

Connection = psycopg.Connection[Any]


def count(conn: Connection) -> int:
    row = psycopg.Cursor(conn).execute("SELECT count(*) FROM jobs").fetchone()
    assert row
    return int(row[0])


def blocked(conn: Connection) -> bool:
    row = conn.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND wait_event_type = 'Lock'"
    ).fetchone()
    return bool(row and row[0])


@pytest.mark.quick
def test_a_job_is_stored_as_asked(conn: Connection) -> None:
    at = datetime(2030, 1, 31, 6, tzinfo=timezone(timedelta(hours=1)))
    made = rw.enqueue(
        conn, "k", {"a": [1, "ü"]}, "key-1", queue="q", priority=0, run_at=at, max_attempts=7
    )
    assert (made.state, made.status, made.new) == ("ready", "new", True)
    row = conn.execute(
        "SELECT kind, payload, idempotency_key, queue, priority, available_at, max_attempts,"
        " attempts, fence FROM jobs WHERE id = %s",
        [made.id],
    ).fetchone()
    assert row == ("k", {"a": [1, "ü"]}, "key-1", "q", 0, at, 7, 0, 0)


def test_defaults_are_the_tables(conn: Connection) -> None:
    rw.enqueue(conn, "message", {})
    conn.execute("INSERT INTO jobs (idempotency_key, payload) VALUES ('plain', '{}')")
    rows = conn.execute(
        "SELECT kind, queue, priority, max_attempts, state, available_at <= clock_timestamp()"
        " FROM jobs"
    ).fetchall()
    assert rows[0] == rows[1] == ("message", "default", 5, 5, "ready", True)


def test_without_a_key_every_job_is_new(conn: Connection) -> None:
    assert rw.enqueue(conn, "k", {}).id != rw.enqueue(conn, "k", {}).id


def test_the_same_job_again_is_found_whatever_the_spelling(conn: Connection) -> None:
    first = rw.enqueue(conn, "k", {"a": 1, "b": [2.0]}, "key")
    again = rw.enqueue(conn, "k", {"b": [2], "a": 1.0}, "key", queue="other", priority=1)
    assert (again.id, again.status, again.new) == (first.id, "existing", False)
    conn.execute("UPDATE jobs SET state = 'dead', ended_at = now()")
    assert rw.enqueue(conn, "k", {"a": 1, "b": [2]}, "key").state == "dead"
    assert count(conn) == 1


@pytest.mark.parametrize(("kind", "payload"), [("other", {"a": 1}), ("k", {"a": "canary-payload"})])
def test_another_job_under_the_key_is_a_conflict(
    conn: Connection, kind: str, payload: object
) -> None:
    first = rw.enqueue(conn, "k", {"a": 1}, "canary-key")
    with pytest.raises(rw.KeyConflict) as caught:
        rw.enqueue(conn, kind, payload, "canary-key")
    assert caught.value.job_id == first.id
    assert "canary" not in str(caught.value)
    assert count(conn) == 1


def test_keys_differ_by_byte(conn: Connection) -> None:
    keys = ["é", "e\u0301", "É", " é", "é "]
    assert len({rw.enqueue(conn, "k", {}, key).id for key in keys}) == len(keys)


@pytest.mark.parametrize("row_factory", [None, dict_row])
def test_the_callers_transaction_decides(dsn: str, conn: Connection, row_factory: Any) -> None:
    with psycopg.connect(dsn) as own:
        if row_factory:
            own.row_factory = row_factory
        rw.enqueue(own, "k", {}, "a")
        own.rollback()
        assert count(conn) == 0
        rw.enqueue(own, "k", {}, "a")
        assert count(conn) == 0
        with pytest.raises(rw.KeyConflict):
            rw.enqueue(own, "k", [1], "a")
        rw.enqueue(own, "k", {}, "b")
        own.commit()
    assert count(conn) == 2


BAD: list[tuple[str, dict[str, Any]]] = [
    ("payload", {"payload": float("nan")}),
    ("payload", {"payload": ["a\0b"]}),
    ("payload", {"payload": "\ud800"}),
    ("payload", {"payload": "x" * 2**21}),
    ("payload", {"payload": [1e300] * 4000}),  # 28 kB given, 1.2 MB as jsonb prints it
    ("payload", {"payload": object()}),
    ("kind", {"kind": ""}),
    ("kind", {"kind": "k" * 129}),
    ("kind", {"kind": 3}),
    ("key", {"key": ""}),
    ("key", {"key": "ü" * 257}),
    ("key", {"key": "a\0"}),
    ("key", {"key": "\udc80"}),
    ("queue", {"queue": ""}),
    ("queue", {"queue": None}),
    ("priority", {"priority": -1}),
    ("priority", {"priority": 10}),
    ("priority", {"priority": 2**70}),
    ("priority", {"priority": True}),
    ("priority", {"priority": 1.0}),
    ("max_attempts", {"max_attempts": 0}),
    ("max_attempts", {"max_attempts": -5}),
    ("max_attempts", {"max_attempts": 2**31}),
    ("run_at", {"run_at": datetime(2030, 1, 1)}),
    ("run_at", {"run_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))}),
    ("run_at", {"run_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))}),
    ("run_at", {"run_at": timedelta(seconds=-1)}),
    ("run_at", {"run_at": timedelta.max}),
    ("run_at", {"run_at": 17.0}),
]


@pytest.mark.parametrize(("field", "given"), BAD, ids=range(len(BAD)))
def test_what_cannot_be_is_refused_and_the_transaction_goes_on(
    dsn: str, conn: Connection, field: str, given: dict[str, Any]
) -> None:
    with psycopg.connect(dsn) as own:
        rw.enqueue(own, "k", {}, "before")
        with pytest.raises(rw.InvalidJob) as caught:
            rw.enqueue(own, **{"kind": "k", "payload": {}, "key": "bad"} | given)
        assert str(caught.value).startswith(f"{field} ")
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 200
        rw.enqueue(own, "k", {}, "after")
    rows = conn.execute("SELECT idempotency_key FROM jobs ORDER BY id").fetchall()
    assert rows == [("before",), ("after",)]


def test_the_ends_of_every_range_are_stored(conn: Connection) -> None:
    rw.enqueue(conn, "k" * 128, "", "k" * 512, queue="ü" * 64, priority=9, max_attempts=2**31 - 1)
    latest = datetime.max.replace(tzinfo=UTC)
    rw.enqueue(conn, "k", 0, run_at=latest)
    rw.enqueue(conn, "k", 0, run_at=datetime.min.replace(tzinfo=UTC))
    rw.enqueue(conn, "k", 0, run_at=timedelta(days=36_525))
    rw.enqueue(conn, "k", "x" * (2**20 - 2))
    assert count(conn) == 5


def test_a_delay_counts_from_the_databases_clock(conn: Connection) -> None:
    made = rw.enqueue(conn, "k", {}, run_at=timedelta(minutes=5))
    row = conn.execute(
        "SELECT available_at - clock_timestamp() BETWEEN '290 s' AND '300 s' FROM jobs"
        " WHERE id = %s",
        [made.id],
    ).fetchone()
    assert row == (True,)


def test_json_text_is_stored_digit_by_digit(conn: Connection) -> None:
    text = '{"n": 12345678901234567890.12345678901234567890}'
    from reliable_worker.enqueue.enqueue import NewJob, insert

    made = insert(conn, prepare(NewJob(kind="k", payload=None), text=text))
    row = conn.execute("SELECT payload::text FROM jobs WHERE id = %s", [made.id]).fetchone()
    assert row == (text,)


@pytest.mark.parametrize("same", [True, False])
def test_a_key_taken_by_a_transaction_still_open_is_waited_for(
    dsn: str, conn: Connection, wait_until: Callable[..., object], same: bool
) -> None:
    answers: list[object] = []

    def second() -> None:
        with psycopg.connect(dsn) as own:
            own.execute("SET lock_timeout = '20s'")
            try:
                answers.append(rw.enqueue(own, "k", 1 if same else 2, "key").status)
            except rw.KeyConflict:
                answers.append("conflict")

    with psycopg.connect(dsn) as first:
        rw.enqueue(first, "k", 1, "key")
        thread = threading.Thread(target=second)
        thread.start()
        wait_until(lambda: blocked(conn), 20, "the second enqueue waits")
    thread.join(20)
    assert answers == ["existing" if same else "conflict"]
    assert count(conn) == 1


def test_one_key_from_many_sides_is_one_job(dsn: str, conn: Connection) -> None:
    answers: list[rw.Enqueued] = []
    barrier = threading.Barrier(8)

    def enqueue() -> None:
        with psycopg.connect(dsn, autocommit=True) as own:
            barrier.wait(20)
            answers.extend(rw.enqueue(own, "k", {"n": n}, f"key-{n}") for n in range(20))

    threads = [threading.Thread(target=enqueue) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(answers) == 160
    assert sum(answer.new for answer in answers) == 20
    assert len({answer.id for answer in answers}) == count(conn) == 20


def test_an_account_with_only_what_enqueue_needs_can_enqueue(dsn: str, conn: Connection) -> None:
    role = f"enqueuer_{dsn.rsplit('_', 1)[1].partition('?')[0]}"
    conn.execute(f"CREATE ROLE {role} NOLOGIN")
    try:
        conn.execute(
            "GRANT INSERT (idempotency_key, payload, kind, queue, priority, available_at,"
            f" max_attempts), SELECT (id, idempotency_key, kind, payload, state) ON jobs TO {role}"
        )
        conn.execute(f"SET ROLE {role}")
        assert rw.enqueue(conn, "k", {}, "a").new
        assert not rw.enqueue(conn, "k", {}, "a").new
        assert [made.new for made in rw.enqueue_many(conn, [job(key="a"), job(key="b")])] == [
            False,
            True,
        ]
    finally:
        conn.execute("RESET ROLE")
        conn.execute(f"DROP OWNED BY {role}")
        conn.execute(f"DROP ROLE {role}")


def job(payload: object = None, **given: Any) -> rw.NewJob:
    fields: dict[str, Any] = {"kind": "k", "payload": {} if payload is None else payload}
    return rw.NewJob(**fields | given)
