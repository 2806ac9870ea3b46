"""A drain gives attempts back and strands nothing; a dead parent leaves no process behind."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from tests.faults.evidence import add_jobs
from tests.faults.invariants import assert_sound
from tests.fixtures.commands import Fleet
from tests.fixtures.waiting import wait_until
from tests.truths import looking

Connection = psycopg.Connection[Any]
Worker = Callable[..., Fleet]


def test_a_job_with_one_attempt_survives_five_drains(
    worker: Worker, truth: Connection, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    (job,) = add_jobs(truth, "gate", [json.dumps({"open": str(gate)})], max_attempts=1)
    for times in range(1, 6):
        fleet = worker()
        looking.wait_start(truth, job, times=times)
        fleet.terminate()
        assert fleet.wait(12) == 0
        row = looking.row(truth, job)
        assert (row.state, row.attempts, row.fence) == ("ready", 0, times)
        assert looking.sessions(truth) == []
    gate.touch()
    worker()
    row = looking.wait_state(truth, job, "succeeded", 20)
    assert row.attempts == 1
    assert looking.scalar(truth, "SELECT max(new_attempts) FROM audit WHERE id = %s", job) == 1
    assert_sound(truth)


def test_a_drain_keeps_the_heartbeat_until_the_thread_has_ended(
    worker: Worker, truth: Connection
) -> None:
    """A grace longer than the lease: the job outlives its lease in the drain and succeeds."""
    (job,) = add_jobs(truth, "work", ['{"seconds": 3}'], max_attempts=1)
    fleet = worker(lease_seconds=1.5, drain_grace_seconds=4.5, renew_seconds=0.2)
    looking.wait_start(truth, job)
    fleet.terminate()
    assert fleet.wait(12) == 0
    row = looking.row(truth, job)
    assert (row.state, row.fence) == ("succeeded", 1)
    assert_sound(truth)


def test_repeated_signals_change_nothing(worker: Worker, truth: Connection, tmp_path: Path) -> None:
    (job,) = add_jobs(truth, "gate", [json.dumps({"open": str(tmp_path / "never")})])
    fleet = worker()
    looking.wait_start(truth, job)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
        fleet.send(number)
    assert fleet.wait(12) == 0
    assert looking.row(truth, job)[:2] == ("ready", 0)
    assert len(fleet.find("shutdown_started")) == 1
    assert len(fleet.find("shutdown_complete")) == 1


def test_a_killed_parent_leaves_no_process_and_no_connection(
    worker: Worker, truth: Connection, tmp_path: Path
) -> None:
    (held,) = add_jobs(truth, "gate", [json.dumps({"open": str(tmp_path / "never")})])
    (stuck,) = add_jobs(truth, "stuck", ["{}"])
    fleet = worker(workers=4, processes=2)
    looking.wait_start(truth, held)
    looking.wait_start(truth, stuck)
    everyone = fleet.processes()
    fleet.send(signal.SIGKILL)
    # deadlines of the promise itself, so exact: 2.5 s and 3.5 s after the kill
    wait_until(lambda: fleet.processes() == [], 2.5, "no process of ours")
    wait_until(lambda: looking.sessions(truth) == [], 1, "no connection of ours")
    released = looking.row(truth, held)
    assert (released.state, released.attempts, released.refunds) == ("ready", 0, 1)
    assert_sound(truth, killed=everyone, quiet=False)
