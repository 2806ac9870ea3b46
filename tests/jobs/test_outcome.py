"""Deciding: every ending of a handler has exactly one outcome, whatever the counts say."""

import pytest

from reliable_worker.jobs import outcome as o
from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.errors import (
    DecodeError,
    Discard,
    Draining,
    JobTimeout,
    LeaseLost,
    Retry,
    Snooze,
)
from reliable_worker.jobs.job import ClaimedJob
from reliable_worker.jobs.lease import Lease
from reliable_worker.jobs.retry import Backoff

POLICY = o.Policy(Backoff(1.0, 64.0, 0.0), max_refunds=3, max_snoozes=2)


def make_job(
    *, attempt: int = 1, max_attempts: int = 5, refunds: int = 0, snoozes: int = 0
) -> ClaimedJob:
    return ClaimedJob(
        lease=Lease(1, "boot.0", 7, until=boottime() + 30),
        key="k",
        kind="message",
        queue="default",
        priority=5,
        payload_text="{}",
        attempt=attempt,
        max_attempts=max_attempts,
        crashes=0,
        refunds=refunds,
        snoozes=snoozes,
        wait_seconds=0.0,
    )


def ending(error: BaseException | None, **more: object) -> o.Ending:
    return o.Ending(error, str(error), **more)  # type: ignore[arg-type]


def test_a_return_completes_even_after_timeout_or_drain_was_signalled() -> None:
    job = make_job()
    job.lease.timeout(1.0)
    job.lease.drain()
    assert o.decide(job, ending(None, stop="drain"), POLICY) == o.Complete()


def test_a_failure_backs_off_doubling_and_the_last_attempt_buries() -> None:
    delays = [o.decide(make_job(attempt=n), ending(ValueError("x")), POLICY) for n in range(1, 5)]
    assert [d.delay_seconds for d in delays if isinstance(d, o.RetryLater)] == [1, 2, 4, 8]
    assert o.decide(make_job(attempt=5), ending(ValueError("x")), POLICY) == o.Bury("x", "error")


@pytest.mark.parametrize(
    ("error", "reason"),
    [(JobTimeout("t"), "timeout"), (DecodeError("d"), "decode"), (SystemExit(0), "error")],
)
def test_the_reason_of_a_failure_is_named(error: BaseException, reason: str) -> None:
    decided = o.decide(make_job(), ending(error), POLICY)
    assert isinstance(decided, o.RetryLater)
    assert decided.reason == reason


def test_a_drain_releases_without_backoff_and_an_orphan_is_refunded() -> None:
    for error in (Draining("stop"), RuntimeError("made of it by the handler")):
        job = make_job()
        job.lease.drain()
        assert o.decide(job, ending(error, stop="drain"), POLICY) == o.Release()
        assert o.decide(job, ending(error, stop="orphaned"), POLICY) == o.Refund(1.0, "orphaned")
    # raised by a handler of its own accord it is a failure like any other
    assert isinstance(o.decide(make_job(), ending(Draining("mine")), POLICY), o.RetryLater)


def test_what_a_handler_decides_in_a_drain_is_done() -> None:
    for error, expected in (
        (Discard("no use"), o.Bury("no use", "discarded")),
        (Snooze(5), o.SnoozeUntil(5)),
    ):
        job = make_job()
        job.lease.drain()
        assert o.decide(job, ending(error, stop="drain"), POLICY) == expected


def test_the_last_attempt_is_released_and_refunded_all_the_same() -> None:
    job = make_job(attempt=1, max_attempts=1)
    job.lease.drain()
    assert o.decide(job, ending(Draining("stop"), stop="drain"), POLICY) == o.Release()
    job = make_job(attempt=1, max_attempts=1)
    decided = o.decide(job, ending(OSError("gone"), infrastructure=True), POLICY)
    assert isinstance(decided, o.Refund)


def test_infrastructure_is_refunded_three_times_in_a_row_then_it_is_a_failure() -> None:
    gone = ending(OSError("gone"), infrastructure=True)
    delays = [o.decide(make_job(refunds=n), gone, POLICY) for n in range(3)]
    assert [d.delay_seconds for d in delays if isinstance(d, o.Refund)] == [1, 2, 4]
    assert isinstance(o.decide(make_job(refunds=3), gone, POLICY), o.RetryLater)
    assert isinstance(o.decide(make_job(refunds=3, attempt=5), gone, POLICY), o.Bury)


def test_snoozes_are_free_until_there_are_too_many() -> None:
    assert o.decide(make_job(snoozes=1), ending(Snooze(5)), POLICY) == o.SnoozeUntil(5)
    assert isinstance(o.decide(make_job(snoozes=2), ending(Snooze(5)), POLICY), o.RetryLater)


def test_a_handler_can_discard_and_choose_its_delay() -> None:
    assert o.decide(make_job(), ending(Discard("no use")), POLICY) == o.Bury("no use", "discarded")
    decided = o.decide(make_job(), ending(Retry(30)), POLICY)
    assert isinstance(decided, o.RetryLater)
    assert decided.delay_seconds == 30
    assert isinstance(o.decide(make_job(attempt=5), ending(Retry(30)), POLICY), o.Bury)


def test_a_lost_lease_writes_nothing_whatever_the_handler_did() -> None:
    for error in (None, ValueError("x"), LeaseLost("l"), Snooze(1)):
        job = make_job()
        job.lease.lose("taken")
        assert o.decide(job, ending(error), POLICY) == o.Abandon()


def test_a_lease_past_its_local_deadline_drops_the_outcome_and_is_refunded() -> None:
    job = make_job()
    assert job.lease.expire()
    assert isinstance(o.decide(job, ending(None), POLICY), o.Refund)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), 1e12])
def test_a_delay_that_cannot_be_meant_fails_where_it_is_written(seconds: float) -> None:
    with pytest.raises(ValueError, match="must be between 0 and"):
        Snooze(seconds)
    with pytest.raises(ValueError, match="must be between 0 and"):
        Retry(seconds)
