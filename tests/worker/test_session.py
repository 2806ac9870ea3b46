"""What a handler's statements leave in a session never reaches the next job (F19)."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.job import ClaimedJob
from reliable_worker.worker.context import JobContext
from reliable_worker.worker.shared import Shared

Claim = Callable[..., list[ClaimedJob]]

TRACES = """
SELECT current_setting('search_path') = '"$user", public'
   AND current_user = session_user
   AND NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())
   AND NOT EXISTS (SELECT FROM pg_listening_channels())
   AND NOT EXISTS (SELECT FROM pg_class WHERE relname = 'left_behind' AND relpersistence = 't')
"""


class Oops(Exception):
    pass


def clean(shared: Shared) -> bool:
    with shared.pool.connection() as conn:
        row = conn.execute(TRACES).fetchone()
    assert row is not None
    return bool(row[0])


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    "statement",
    [
        "SET search_path = nowhere",
        "SET SESSION ROLE pg_monitor",
        "SELECT set_config('search_path', 'nowhere', false)",
        "SELECT pg_advisory_lock(1)",
        "LISTEN somebody",
        "CREATE TEMP TABLE left_behind (x int)",
    ],
)
def test_a_transaction_leaves_nothing_behind(
    shared: Shared, claimed: Claim, conn: psycopg.Connection, statement: str, fails: bool
) -> None:
    (job,) = claimed(1)
    context = JobContext(shared, job, {}, boottime() + 20)
    ended: type[Exception] | None = None
    try:
        with context.transaction() as tx:
            tx.execute(statement)
            tx.execute("RESET ROLE")  # pg_monitor may not verify the transaction
            if fails:
                raise Oops
    except Oops:
        ended = Oops
    assert (ended is Oops) is fails
    assert clean(shared)


def test_a_transaction_that_leaves_nothing_keeps_its_session(
    shared: Shared, claimed: Claim, conn: psycopg.Connection
) -> None:
    """Returning to the start costs a round trip and every prepared statement: only when needed."""
    first, second = claimed(2)
    for job in (first, second):
        context = JobContext(shared, job, {}, boottime() + 20)
        with context.transaction() as tx:
            tx.execute("INSERT INTO processed_messages VALUES (%s, 'x')", (job.key,))
            tx.execute("SELECT message FROM processed_messages")
        assert not context.traces
    row = conn.execute("SELECT count(*) FROM jobs WHERE state = 'succeeded'").fetchone()
    assert row == (2,)
