"""The handlers' pool after the server has ended its sessions: no job finds a dead connection."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.job import ClaimedJob
from reliable_worker.worker.context import JobContext
from reliable_worker.worker.shared import Shared
from tests.fixtures.waiting import wait_until

Claim = Callable[..., list[ClaimedJob]]

WORK = "FROM pg_stat_activity WHERE application_name LIKE 'rw:%:work'"


def sessions(conn: psycopg.Connection) -> int:
    row = conn.execute(f"SELECT count(*) {WORK}").fetchone()
    assert row is not None
    return int(row[0])


def test_a_restart_between_two_jobs_is_seen_by_neither(
    shared: Shared, claimed: Claim, conn: psycopg.Connection
) -> None:
    """Four dead connections in a row would use up a job's three refunds, then its attempt."""
    held = [shared.pool.getconn(timeout=5) for _ in range(4)]
    for pooled in held:
        pooled.execute("SELECT 1")
        shared.pool.putconn(pooled)
    conn.execute(f"SELECT pg_terminate_backend(pid) {WORK}")
    wait_until(lambda: sessions(conn) == 0, 10, "the sessions' end")
    (job,) = claimed(1)
    context = JobContext(shared, job, {}, boottime() + 20)
    began = boottime()
    with context.transaction() as tx:
        tx.execute("SELECT 1")
    assert context.finished
    assert boottime() - began < shared.settings.query_timeout_seconds
    wait_until(lambda: shared.pool.get_stats()["pool_size"] <= 4, 10, "a whole pool")
