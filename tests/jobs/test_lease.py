"""The lease's state machine: what may still be done with it, and what a handler is told."""

import pytest

from reliable_worker.jobs.deadline import Deadline, boottime
from reliable_worker.jobs.errors import BudgetExceeded, Draining, JobTimeout, LeaseLost
from reliable_worker.jobs.lease import Lease, LeaseState


def make_lease(seconds: float = 30.0) -> Lease:
    return Lease(1, "boot.0", 3, until=boottime() + seconds)


def test_finishing_pauses_renewals_and_a_rollback_lets_them_go_on() -> None:
    lease = make_lease()
    assert lease.renewable()
    lease.begin_finish()
    assert lease.state is LeaseState.FINISHING
    assert not lease.renewable()
    lease.resume()
    assert lease.renewable()


def test_an_ended_lease_stays_ended() -> None:
    lease = make_lease()
    lease.end()
    lease.resume()
    assert lease.state is LeaseState.ENDED


def test_a_second_finish_or_one_without_a_lease_is_refused() -> None:
    lease = make_lease()
    lease.begin_finish()
    with pytest.raises(LeaseLost):
        lease.begin_finish()
    lost = make_lease()
    assert lost.lose("taken")
    with pytest.raises(LeaseLost):
        lost.begin_finish()


def test_the_local_deadline_leaves_a_finishing_lease_alone() -> None:
    lease = make_lease(seconds=-1)
    lease.begin_finish()
    assert not lease.expire()
    lease.cancellation.check()
    lease.resume()
    assert lease.expire()
    with pytest.raises(LeaseLost):
        lease.cancellation.check()


def test_an_ended_lease_cannot_be_lost() -> None:
    lease = make_lease()
    lease.end()
    assert not lease.lose("late news")
    lease.cancellation.check()


def test_a_lost_lease_outranks_timeout_and_drain_but_not_the_other_way() -> None:
    lease = make_lease()
    assert lease.timeout(1.0)
    assert not lease.drain()
    with pytest.raises(JobTimeout):
        lease.cancellation.check()
    assert lease.lose("taken")
    assert not lease.drain()
    with pytest.raises(LeaseLost):
        lease.cancellation.check()


def test_cancellations_pass_by_except_exception() -> None:
    for reason in (LeaseLost, JobTimeout, Draining):
        assert not issubclass(reason, Exception)


def test_listeners_hear_a_request_also_when_they_come_late() -> None:
    lease = make_lease()
    heard: list[str] = []
    lease.cancellation.listen(lambda: heard.append("early"))
    lease.drain()
    lease.cancellation.listen(lambda: heard.append("late"))
    assert heard == ["early", "late"]


def test_a_renewal_only_ever_prolongs() -> None:
    lease = make_lease(10)
    until = lease.until
    lease.renewed(0.0, until - 5)
    assert lease.until == until
    lease.renewed(boottime(), until + 5)
    assert lease.until == until + 5


def test_a_budget_names_itself() -> None:
    deadline = Deadline(0.0, "claim_timeout_seconds")
    assert deadline.remaining() == 0.0
    with pytest.raises(BudgetExceeded, match="claim_timeout_seconds exceeded its budget of 0 s"):
        deadline.check()
