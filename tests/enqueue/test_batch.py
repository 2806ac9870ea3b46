"""Many jobs at once: all or none, answers in order, the key rule of one job."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

import reliable_worker as rw
from tests.enqueue.test_enqueue import count, job

Connection = psycopg.Connection[Any]


@pytest.mark.quick
def test_answers_come_in_order_with_the_key_rule_of_one(conn: Connection) -> None:
    old = rw.enqueue(conn, "k", {"n": 1.0}, "old")
    made = rw.enqueue_many(
        conn,
        [
            job({"n": 2}, key="z"),
            job({"n": 1}, key="old"),
            job({"n": 3}),
            job({"n": 2.0}, key="z"),
            job({"n": 4}, key="a"),
        ],
    )
    assert [answer.status for answer in made] == ["new", "existing", "new", "existing", "new"]
    assert made[1].id == old.id
    assert made[3].id == made[0].id
    ids = [made[i].id for i in (0, 2, 4)]
    rows = conn.execute(
        "SELECT payload FROM jobs WHERE id = ANY(%s) ORDER BY available_at, id", [ids]
    ).fetchall()
    assert [row[0]["n"] for row in rows] == [2, 3, 4]


def test_they_run_in_the_order_given_and_at_once(conn: Connection) -> None:
    rng = random.Random(7)
    keys = [f"{rng.random()}" for _ in range(1200)]  # three statements
    made = rw.enqueue_many(conn, (job(n, key=key) for n, key in enumerate(keys)))
    assert len(made) == len({answer.id for answer in made}) == 1200
    rows = conn.execute("SELECT payload FROM jobs ORDER BY available_at, id").fetchall()
    assert [row[0] for row in rows] == list(range(1200))
    late = conn.execute("SELECT count(*) FROM jobs WHERE available_at > now()").fetchone()
    assert late == (0,)


def test_every_field_is_stored(conn: Connection) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    rw.enqueue_many(
        conn,
        [
            job(key="a", queue="q", priority=1, run_at=at, max_attempts=2),
            job(key="b", run_at=timedelta(hours=1)),
        ],
    )
    rows = conn.execute(
        "SELECT kind, queue, priority, max_attempts, available_at, available_at - now()"
        " FROM jobs ORDER BY idempotency_key"
    ).fetchall()
    assert rows[0][:5] == ("k", "q", 1, 2, at)
    assert rows[1][:4] == ("k", "default", 5, 5)
    assert timedelta(minutes=59) < rows[1][5] <= timedelta(hours=1)


def test_none_is_none(conn: Connection) -> None:
    assert rw.enqueue_many(conn, []) == []
    assert rw.copy_jobs(conn, []) == 0


LARGE = [1e300] * 4000  # small when given, larger than the limit as jsonb prints it
REFUSALS: list[tuple[type[Exception], list[rw.NewJob], str]] = [
    (rw.InvalidJob, [job(), job(float("nan"))], "job 1: payload holds NaN"),
    (rw.InvalidJob, [job(key="")], "job 0: key must have"),
    (rw.InvalidJob, [job(), job(LARGE)], "payload has"),
    (rw.KeyConflict, [job(), job(1, key="a"), job(2, key="a")], "another kind or payload"),
    (rw.KeyConflict, [job(), job(2, key="taken")], "another kind or payload"),
]


@pytest.mark.parametrize("how", ["autocommit", "transaction", "begins"])
@pytest.mark.parametrize("refusal", REFUSALS, ids=range(len(REFUSALS)))
def test_all_are_stored_or_none(
    dsn: str, conn: Connection, how: str, refusal: tuple[type[Exception], list[rw.NewJob], str]
) -> None:
    error, jobs, words = refusal
    rw.enqueue(conn, "k", {}, "taken")
    with psycopg.connect(dsn, autocommit=how == "autocommit") as own:
        if how == "transaction":
            rw.enqueue(own, "k", {}, "before")
        with pytest.raises(error, match=words):
            rw.enqueue_many(own, jobs)
        assert count(conn) == 1
        rw.enqueue_many(own, [job(key="after")])
        assert count(conn) == (2 if how == "autocommit" else 1)
    assert count(conn) == {"autocommit": 2, "transaction": 3, "begins": 2}[how]


@pytest.mark.parametrize("how", ["autocommit", "transaction", "begins"])
def test_copy_streams_all_or_none(dsn: str, conn: Connection, how: str) -> None:
    def jobs(broken: bool) -> Iterator[rw.NewJob]:
        for n in range(3000):
            yield job({"n": n, "text": "tab\t newline\n back\\slash ü"}, key=f"key-{n}")
        if broken:
            yield job("a\0b")

    with psycopg.connect(dsn, autocommit=how == "autocommit") as own:
        if how == "transaction":
            rw.enqueue(own, "k", {}, "before")
        with pytest.raises(rw.InvalidJob, match="job 3000: payload holds a NUL"):
            rw.copy_jobs(own, jobs(broken=True))
        assert count(conn) == 0
        assert rw.copy_jobs(own, jobs(broken=False)) == 3000
        with pytest.raises(psycopg.errors.UniqueViolation):
            with own.transaction():
                rw.copy_jobs(own, jobs(broken=False))
        assert count(conn) == (3000 if how == "autocommit" else 0)
    assert count(conn) == (3001 if how == "transaction" else 3000)
    row = conn.execute("SELECT payload->>'text' FROM jobs WHERE kind = 'k' ORDER BY id DESC")
    assert row.fetchone() == ("tab\t newline\n back\\slash ü",)


def test_batches_with_common_keys_do_not_deadlock(dsn: str, conn: Connection) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    keys = [f"key-{n}" for n in range(1100)]
    failures: list[BaseException] = []
    barrier = threading.Barrier(4)

    def enqueue(number: int) -> None:
        order = random.Random(seed + number).sample(keys, len(keys))
        try:
            with psycopg.connect(dsn) as own:
                barrier.wait(20)
                rw.enqueue_many(own, [job(key, key=key) for key in order])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=enqueue, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert count(conn) == len(keys)
