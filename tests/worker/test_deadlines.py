"""Leases that run out or are hard to renew: who pays for it, and whom it must not touch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import psycopg
import pytest

from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.errors import JobTimeout, LeaseLost
from reliable_worker.jobs.job import ClaimedJob
from reliable_worker.jobs.lease import Lease, LeaseState
from reliable_worker.jobs.outcome import Complete, Ending, Refund, RetryLater, decide
from reliable_worker.worker.context import JobContext
from reliable_worker.worker.control import Control
from reliable_worker.worker.finish import Finished
from reliable_worker.worker.heartbeat import Heartbeat
from reliable_worker.worker.renewal import LeaseBook
from reliable_worker.worker.shared import Shared
from tests.fixtures.waiting import wait_until

Claim = Callable[..., list[ClaimedJob]]


def overdue(shared: Shared, job: ClaimedJob) -> ClaimedJob:
    """The same claim with its local deadline in the past."""
    lease = Lease(job.id, job.lease.owner, job.lease.fence, until=boottime() - 1)
    late = replace(job, lease=lease)
    shared.book.add([late])
    return late


def test_a_transaction_begun_past_the_deadline_without_contact_costs_no_attempt(
    shared: Shared, claimed: Claim
) -> None:
    (job,) = claimed(1)
    late = overdue(shared, job)
    context = JobContext(shared, late, {}, boottime() + 20)
    with (
        shared.control.use(2, "claim_timeout_seconds"),  # nobody can renew meanwhile
        pytest.raises(LeaseLost) as raised,
        context.transaction(),
    ):
        pass
    assert isinstance(decide(late, Ending(raised.value), shared.policy), Refund)


def test_a_deadline_that_passes_as_the_handler_returns_costs_no_attempt(
    shared: Shared, claimed: Claim, conn: psycopg.Connection
) -> None:
    """The heartbeat may be just behind: the completion is handed in, then the lease expires."""
    first, second, third = claimed(3)
    for job in (first, second, third):
        shared.finisher.submit(Finished(job, Complete()))
        assert job is third or job.lease.expire()
    shared.finisher.thread.start()
    wait_until(lambda: not shared.finisher.backlog, 20, "everything acknowledged")
    rows = conn.execute("SELECT state, attempts, refunds FROM jobs ORDER BY id").fetchall()
    assert rows == [("ready", 0, 1), ("ready", 0, 1), ("succeeded", 1, 0)]


def test_a_cancelled_session_is_not_lent_again(shared: Shared, claimed: Claim) -> None:
    """The cancel may arrive after the block: it must not meet another job's statement."""
    (job,) = claimed(1)
    context = JobContext(shared, job, {}, boottime() + 20)
    with context.transaction() as tx:
        before = tx.execute("SELECT pg_backend_pid()").fetchone()
        job.lease.cancellation.request(JobTimeout("over"))
        context.interrupt()
    with shared.pool.connection() as pooled:
        assert pooled.execute("SELECT pg_backend_pid()").fetchone() != before


def test_a_lease_that_has_lapsed_leaves_the_others_their_time(
    shared: Shared, claimed: Claim, conn: psycopg.Connection
) -> None:
    """Renewing takes as long as a slow server needs, whatever else is in the book."""
    lapsed, live = claimed(2)
    wide = replace(
        shared.settings,
        claim_timeout_seconds=2.0,
        query_timeout_seconds=2.0,
        statement_timeout_seconds=2.0,
    )
    book = LeaseBook(wide, Control(wide, shared.boot, shared.board), shared.board)
    book.add([live, overdue(shared, lapsed)])
    conn.execute(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_sleep(0.8); RETURN new; END $$"
    )
    conn.execute(
        "CREATE TRIGGER slow BEFORE UPDATE ON jobs FOR EACH STATEMENT EXECUTE FUNCTION slow()"
    )
    before = live.lease.until
    wait_until(lambda: boottime() > live.lease.renewed_at + 2.1, 10, "a renewal to be due")
    book.renew_due()
    assert live.lease.until > before


def test_a_failure_being_recorded_is_not_renewed(shared: Shared, claimed: Claim, dsn: str) -> None:
    """A renewal could find the row already given back, and take it for lost to another."""
    (job,) = claimed(1)
    with psycopg.connect(dsn) as holder:
        holder.execute("SELECT 1 FROM jobs FOR UPDATE")
        shared.finisher.submit(Finished(job, RetryLater(60, "later", "error")))
        shared.finisher.thread.start()
        wait_until(lambda: job.lease.state is LeaseState.FINISHING, 10, "the write to wait")
    wait_until(lambda: not shared.finisher.backlog, 20, "the failure recorded")
    assert not job.lease.lost


def test_an_idle_slots_heartbeat_keeps_what_the_finisher_has_not_written(
    shared: Shared, claimed: Claim
) -> None:
    """The finisher may be held up for long: by an unanswered COMMIT, by a lock."""
    (job,) = claimed(1)
    shared.finisher.submit(Finished(job, RetryLater(60, "later", "error")))
    before = job.lease.until
    heartbeat = Heartbeat(0, shared.book, shared.settings.renew_seconds)
    heartbeat.start()
    try:
        wait_until(lambda: job.lease.until > before, 10, "a renewal")
    finally:
        heartbeat.close()
        heartbeat.thread.join(10)
