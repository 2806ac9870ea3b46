"""What handlers do with `job` that they should not: it is refused, or means what it seems to mean.

No statement of one job ever lands in another's transaction, and a mistake in a handler is its own
failure, never a lost lease or a fault of the database.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest

from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.errors import AlreadyFinished, TransactionBroken
from reliable_worker.jobs.job import ClaimedJob
from reliable_worker.jobs.outcome import Complete
from reliable_worker.worker.context import JobContext
from reliable_worker.worker.finish import Finished
from reliable_worker.worker.shared import Shared
from tests.fixtures.waiting import wait_until

Claim = Callable[..., list[ClaimedJob]]
EFFECT = "INSERT INTO effects (job) VALUES (%s)"


@pytest.fixture(autouse=True)
def effects_table(conn: psycopg.Connection) -> None:
    conn.execute("CREATE TABLE effects (job bigint NOT NULL)")


def context_of(shared: Shared, job: ClaimedJob) -> JobContext:
    return JobContext(shared, job, {}, boottime() + 20)


def effects(conn: psycopg.Connection) -> list[int]:
    return [row[0] for row in conn.execute("SELECT job FROM effects ORDER BY job").fetchall()]


def test_a_kept_tx_reaches_nobody_elses_transaction(
    shared: Shared, claimed: Claim, conn: psycopg.Connection
) -> None:
    first, second = claimed(2)
    with context_of(shared, first).transaction() as kept:
        pass
    with context_of(shared, second).transaction() as tx:  # on the same pooled connection
        with pytest.raises(TransactionBroken, match="block has ended"):
            kept.execute(EFFECT, (1,))
        with pytest.raises(TransactionBroken, match="block has ended"):
            kept.executemany(EFFECT, [(1,)])
        tx.execute(EFFECT, (2,))
    assert effects(conn) == [2]


def test_a_block_inside_a_block_is_a_failure_and_no_lost_lease(
    shared: Shared, claimed: Claim, conn: psycopg.Connection
) -> None:
    (job,) = claimed(1)
    context = context_of(shared, job)
    with context.transaction() as tx:
        with pytest.raises(AlreadyFinished, match="one transaction"):
            context.finish(lambda inner: None)
        tx.execute(EFFECT, (1,))
    assert context.finished
    assert effects(conn) == [1]


def test_a_second_thread_finds_the_block_taken(
    shared: Shared, claimed: Claim, conn: psycopg.Connection
) -> None:
    (job,) = claimed(1)
    context = context_of(shared, job)
    met: list[BaseException] = []

    def other() -> None:
        try:
            with context.transaction() as tx:
                tx.execute(EFFECT, (2,))
        except BaseException as error:
            met.append(error)

    with context.transaction() as tx:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(10)
        tx.execute(EFFECT, (1,))
    assert [type(error) for error in met] == [AlreadyFinished]
    assert effects(conn) == [1]


def test_after_the_handler_has_returned_its_threads_can_add_nothing(
    shared: Shared, claimed: Claim, conn: psycopg.Connection
) -> None:
    (job,) = claimed(1)
    context = context_of(shared, job)
    context.effect(EFFECT, (1,))
    context.close(1.0)
    with pytest.raises(AlreadyFinished), context.transaction():
        pass
    with pytest.raises(AlreadyFinished):
        context.effect(EFFECT, (2,))
    shared.finisher.submit(Finished(job, Complete(), context.effects))
    shared.finisher.thread.start()
    wait_until(lambda: not shared.finisher.backlog, 20, "the completion")
    assert effects(conn) == [1]
    assert conn.execute("SELECT state FROM jobs").fetchall() == [("succeeded",)]


def test_a_thread_still_in_its_block_when_the_handler_returns_is_waited_for(
    shared: Shared, claimed: Claim, conn: psycopg.Connection
) -> None:
    (job,) = claimed(1)
    context = context_of(shared, job)
    inside, go_on = threading.Event(), threading.Event()

    def other() -> None:
        with context.transaction() as tx:
            inside.set()
            go_on.wait(10)
            tx.execute(EFFECT, (1,))

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(10)
    closing = threading.Thread(target=context.close, args=(10.0,))
    closing.start()
    wait_until(lambda: context.returned, 10, "the handler's return")
    go_on.set()
    closing.join(10)
    assert context.finished
    thread.join(10)
    assert effects(conn) == [1]


def test_parameters_are_those_of_the_moment_of_recording(
    shared: Shared, claimed: Claim, conn: psycopg.Connection
) -> None:
    (job,) = claimed(1)
    context = context_of(shared, job)
    named, listed = {"n": 0}, [0]
    for number in (1, 2):
        named["n"], listed[0] = number, number + 10
        context.effect("INSERT INTO effects (job) VALUES (%(n)s)", named)
        context.effect(EFFECT, listed)
    with context.transaction():
        pass
    assert effects(conn) == [1, 2, 11, 12]


def test_parameters_that_are_no_sequence_fail_where_they_are_recorded(
    shared: Shared, claimed: Claim
) -> None:
    (job,) = claimed(1)
    with pytest.raises(TypeError, match="a sequence or a mapping"):
        context_of(shared, job).effect(EFFECT, (n for n in (1,)))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a sequence or a mapping"):
        context_of(shared, job).effect(EFFECT, "1")
