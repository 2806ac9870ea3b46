"""Whatever a handler raises or does, its own job bears it: threads, log and neighbours go on."""

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.faults.apps import ODD
from tests.faults.evidence import add_jobs
from tests.faults.invariants import assert_sound
from tests.fixtures.commands import Fleet
from tests.fixtures.waiting import wait_until
from tests.truths import looking

Connection = psycopg.Connection[Any]
Worker = Callable[..., Fleet]


def test_no_error_ends_a_thread_or_stays_unrecorded(worker: Worker, truth: Connection) -> None:
    payloads = [json.dumps({"what": what}) for what in ODD]
    odd = add_jobs(truth, "odd", payloads, max_attempts=1)
    fleet = worker(workers=2, job_timeout_seconds=30)
    looking.wait_states(truth, {"dead": len(odd)}, 30)
    for job, what in zip(odd, ODD, strict=True):
        error = looking.row(truth, job).error
        assert error, what
        assert len(error) <= 1000
        assert "\n" not in error
        fleet.wait_event("job_failed", 20, job_id=job, reason="error")
        assert len(fleet.find("job_failed", job_id=job, reason="error")) == 1
    # as many jobs side by side as there are threads: none has ended
    slow = add_jobs(truth, "work", ['{"seconds": 1}'] * 2)
    for job in slow:
        looking.wait_start(truth, job)
    looking.wait_states(truth, {"dead": len(odd), "succeeded": 2}, 20)
    assert not fleet.find("child_restarted")
    assert not fleet.find("forged")
    assert not fleet.strays
    assert_sound(truth)


def test_what_a_handler_prints_is_not_in_the_log(worker: Worker, truth: Connection) -> None:
    (job,) = add_jobs(truth, "printing", ["{}"])
    fleet = worker()
    looking.wait_state(truth, job, "succeeded", 20)
    fleet.terminate()
    assert fleet.wait(15) == 0
    assert not fleet.strays
    assert "nor this" in fleet.stderr()


@pytest.mark.parametrize("how", ["effect", "transaction", "finish", "inside"])
def test_a_handler_that_forks_finishes_once(worker: Worker, truth: Connection, how: str) -> None:
    """Both processes go on at once with the same job; several at a time, so that they race."""
    jobs = add_jobs(truth, "forking", [json.dumps({"how": how})] * 12)
    fleet = worker(workers=4, lease_seconds=10)
    looking.wait_all(truth, "succeeded", 30)
    for job in jobs:
        row = looking.row(truth, job)
        assert (row.attempts, row.fence) == (1, 1)
        assert looking.effects(truth, job) == 1
    # parent, worker and maintenance: no copy is left
    wait_until(lambda: len(fleet.processes()) == 3, 20, "the copies gone")
    assert not fleet.find("child_restarted")
