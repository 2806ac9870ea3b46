"""A COMMIT whose answer is lost: what it did is learned, never guessed; the effect stays single."""

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.faults.evidence import add_jobs
from tests.faults.invariants import assert_sound
from tests.faults.link import Then
from tests.faults.proxy import Proxy
from tests.faults.wire import is_commit
from tests.fixtures.commands import Fleet
from tests.fixtures.waiting import wait_until
from tests.truths import looking

Connection = psycopg.Connection[Any]
Worker = Callable[..., Fleet]

HOWS = ["effect", "transaction", "finish"]
# The lease is far longer than the tests: nothing here is cured by its expiry.
LEASE = {"lease_seconds": 20, "finish_timeout_seconds": 1}


@pytest.mark.parametrize("then", [Then.CUT, Then.RESET, Then.SILENT])
@pytest.mark.parametrize("how", HOWS)
def test_a_commit_whose_answer_is_lost_has_happened(
    proxied: Worker, truth: Connection, proxy: Proxy, how: str, then: Then
) -> None:
    trap = proxy.drop_reply(is_commit, app="*:work", then=then)
    (job,) = add_jobs(truth, "work", [json.dumps({"how": how})])
    fleet = proxied(**LEASE)
    trap.wait(20)
    assert trap.outcome == "COMMIT"
    resolved = fleet.wait_event("finish_resolved", 15, job_id=job)
    assert resolved["outcome"] == "committed"
    fleet.wait_event("job_succeeded", 10, job_id=job)
    row = looking.row(truth, job)
    assert (row.state, row.attempts, row.fence) == ("succeeded", 1, 1)
    assert looking.starts(truth, job) == 1
    assert not fleet.find("job_failed")
    assert_sound(truth)


@pytest.mark.parametrize("how", HOWS)
def test_a_commit_that_never_arrived_is_done_again(
    proxied: Worker, truth: Connection, proxy: Proxy, how: str
) -> None:
    trap = proxy.drop_request(is_commit, app="*:work")
    (job,) = add_jobs(truth, "work", [json.dumps({"how": how})], max_attempts=1)
    fleet = proxied(**LEASE)
    trap.wait(20)
    assert fleet.wait_event("finish_resolved", 15, job_id=job)["outcome"] == "rolled_back"
    row = looking.wait_state(truth, job, "succeeded", 15)
    assert row.attempts == 1
    # effects as data and finish(fn) are replayed; a `with` body cannot be and runs again
    assert looking.starts(truth, job) == (2 if how == "transaction" else 1)
    assert_sound(truth)


@pytest.mark.parametrize("how", HOWS)
def test_a_commit_in_flight_while_its_client_asks_is_not_taken_for_a_rollback(
    proxied: Worker, truth: Connection, proxy: Proxy, how: str
) -> None:
    """The old backend still holds its transaction open; a plain read would say "running"."""
    trap = proxy.hold_request(is_commit, app="*:work")
    (job,) = add_jobs(truth, "work", [json.dumps({"how": how})], max_attempts=1)
    # the server's own cure for idle transactions comes too late to help
    fleet = proxied(
        idle_in_transaction_timeout_seconds=60,
        lock_timeout_seconds=0.3,
        **LEASE,
    )
    trap.wait(20)
    fleet.wait_event("finish_resolved", 15, job_id=job)
    proxy.let_go(trap)
    row = looking.wait_state(truth, job, "succeeded", 15)
    assert row.attempts == 1
    assert_sound(truth)


@pytest.mark.parametrize("then", [Then.CUT, Then.SILENT])
def test_a_claim_whose_answer_is_lost_is_found_again(
    proxied: Worker, truth: Connection, proxy: Proxy, then: Then
) -> None:
    fleet = proxied(**LEASE)
    fleet.wait_event("child_ready", 20, role="worker")
    # an empty claim is harmless to lose: only the one that took the job counts
    trap = proxy.drop_reply("lease_owner = ($6", app="*:control", then=then)
    (job,) = add_jobs(truth, "work", ["{}"], max_attempts=1)
    trap.wait(20)
    row = looking.wait_state(truth, job, "succeeded", 15)
    assert row.attempts == 1
    assert_sound(truth)


def test_a_failure_whose_record_is_unacknowledged_is_recorded_once(
    proxied: Worker, truth: Connection, proxy: Proxy
) -> None:
    trap = proxy.drop_reply("last_error = $5", app="rw:*")
    (job,) = add_jobs(truth, "fail", ['{"times": 1}'])
    proxied(**LEASE)
    trap.wait(20)
    row = looking.wait_state(truth, job, "succeeded", 20)
    assert (row.attempts, row.fence) == (2, 2)
    assert looking.moves(truth, job).count(("running", "ready")) == 1
    assert_sound(truth, quiet=False)


def test_a_release_whose_record_is_unacknowledged_gives_one_attempt_back(
    proxied: Worker, truth: Connection, proxy: Proxy
) -> None:
    trap = proxy.drop_reply("greatest(j.attempts - 1, 0)", app="rw:*")
    (job,) = add_jobs(truth, "work", ['{"seconds": 60}'])
    truth.execute("UPDATE jobs SET attempts = 3 WHERE id = %s", (job,))
    fleet = proxied(**LEASE, stop_seconds=10)
    looking.wait_start(truth, job)
    fleet.terminate()
    trap.wait(10)
    assert fleet.wait(12) == 0
    row = looking.row(truth, job)
    assert (row.state, row.attempts) == ("ready", 3)
    wait_until(lambda: looking.sessions(truth) == [], 5, "no session of ours")
