"""Every failpoint, once per way to fail: nothing is lost, nothing is done twice, work goes on."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from reliable_worker.jobs.failpoints import POINTS
from tests.faults.evidence import add_jobs
from tests.faults.invariants import assert_sound
from tests.fixtures.commands import Fleet
from tests.fixtures.waiting import wait_until
from tests.truths import looking

Connection = psycopg.Connection[Any]
Worker = Callable[..., Fleet]

# in_release is on the way of a drain alone, which the second test takes.
ON_THE_WAY = sorted(POINTS - {"in_release"})


@pytest.mark.parametrize("action", ["kill", "exit0", "raise"])
def test_each_point_fails_once_and_all_jobs_succeed(
    worker: Worker, truth: Connection, tmp_path: Path, action: str
) -> None:
    """One fleet meets every point, one process after the other."""
    payloads = [
        json.dumps({"how": ("effect", "transaction", "finish")[n % 3], "seconds": 0.02})
        for n in range(60)
    ]
    add_jobs(truth, "work", payloads, max_attempts=20)
    orders = [f"{point}:{action}@{tmp_path}/{point}" for point in ON_THE_WAY]
    # crashes are no fault of these jobs, however often one of them is hit
    fleet = worker(failpoint=",".join(orders), max_crashes=50, retry_base_seconds=0.1)
    looking.wait_all(truth, "succeeded", 60)

    def reached() -> bool:
        return {entry.name for entry in tmp_path.iterdir()} == set(ON_THE_WAY) - skipped

    # without a death there is no obituary to fail in
    skipped = {"in_obituary"} if action == "raise" and not fleet.find("obituary") else set()
    wait_until(reached, 20, f"every point reached; so far {os.listdir(tmp_path)}")
    fleet.terminate()
    fleet.wait(15)
    died = [int(token.read_text()) for token in tmp_path.iterdir()]
    assert_sound(truth, keys=[f"work-{n}" for n in range(1, 61)], killed=died)


@pytest.mark.parametrize("action", ["kill", "exit0", "raise"])
def test_a_release_that_fails_strands_nothing(
    worker: Worker, truth: Connection, tmp_path: Path, action: str
) -> None:
    gate = tmp_path / "gate"
    token = tmp_path / "token"
    (job,) = add_jobs(truth, "gate", [json.dumps({"open": str(gate)})], max_attempts=2)
    fleet = worker(failpoint=f"in_release:{action}@{token}")
    pid = looking.wait_start(truth, job)
    fleet.terminate()
    fleet.wait(15)
    assert token.exists()
    assert looking.sessions(truth) == []
    gate.touch()
    worker()
    looking.wait_state(truth, job, "succeeded", 20)
    assert_sound(truth, killed=[pid])
