"""Killed children, killed fleets and zombies: jobs come back quickly, effects stay single."""

import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.faults.evidence import add_jobs
from tests.faults.invariants import assert_sound
from tests.faults.link import Then
from tests.faults.proxy import Proxy
from tests.fixtures.commands import Fleet
from tests.fixtures.waiting import wait_until
from tests.truths import looking

Connection = psycopg.Connection[Any]
Worker = Callable[..., Fleet]


def taken_back(conn: Connection, job_id: int) -> bool:
    return looking.row(conn, job_id).fence >= 2


def test_a_killed_childs_jobs_are_ready_within_two_seconds(
    worker: Worker, truth: Connection, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    jobs = add_jobs(truth, "gate", [json.dumps({"open": str(gate)})] * 2, max_attempts=1)
    # a lease far longer than the promise: it is the obituary that frees them
    fleet = worker(lease_seconds=20, workers=2, processes=1)
    (pid,) = {looking.wait_start(truth, job) for job in jobs}
    at = looking.scalar(truth, "SELECT clock_timestamp()")
    os.kill(pid, signal.SIGKILL)
    fleet.wait_event("obituary", 5)
    for job in jobs:
        wait_until(partial(taken_back, truth, job), 5, "the job taken back")
        taken, attempts, crashes = truth.execute(
            "SELECT extract(epoch FROM at - %s), new_attempts, new_crashes FROM audit"
            " WHERE id = %s AND old_state = 'running' AND new_state = 'ready' ORDER BY seq",
            (at, job),
        ).fetchall()[0]
        assert taken <= 2
        assert (attempts, crashes) == (0, 1)
    gate.touch()
    for job in jobs:
        row = looking.wait_state(truth, job, "succeeded", 30)
        assert (row.attempts, row.crashes) == (1, 0)
    quarantined = fleet.find("child_started", role="quarantine")
    assert quarantined, "the suspects ran alone"
    assert_sound(truth, killed=[pid])


def test_a_poison_dies_alone_and_the_innocent_succeed(worker: Worker, truth: Connection) -> None:
    (poison,) = add_jobs(truth, "crash", [json.dumps({"signal": signal.SIGSEGV})])
    add_jobs(truth, "work", ['{"seconds": 0.05}'] * 20)
    fleet = worker(lease_seconds=10, workers=4, processes=1)
    row = looking.wait_state(truth, poison, "dead", 60)
    assert row.crashes == 3
    assert row.error is not None
    assert "SIGSEGV" in row.error
    wait_until(lambda: looking.states(truth).get("succeeded") == 20, 30, "20 succeeded")
    assert len(fleet.find("child_started")) <= 2 + 1 + 4  # worker, maintenance, one crash, alone
    pids = [pid for (pid,) in truth.execute("SELECT DISTINCT pid FROM hist")]
    crashed = [e["pid"] for e in fleet.find("child_exited") if e["pid"] in pids]
    assert_sound(truth, killed=crashed)


def test_leaving_by_exit_zero_is_a_crash(worker: Worker, truth: Connection) -> None:
    (job,) = add_jobs(truth, "crash", ['{"exit": 0}'])
    fleet = worker(lease_seconds=10)
    assert looking.wait_state(truth, job, "dead", 60).crashes == 3
    (other,) = add_jobs(truth, "work", ["{}"])
    looking.wait_state(truth, other, "succeeded", 20)
    fleet.terminate()
    assert fleet.wait(12) == 0


def test_a_claim_that_commits_after_its_process_died_leaves_nothing(
    proxied: Worker, truth: Connection, proxy: Proxy
) -> None:
    fleet = proxied(lease_seconds=20, claim_timeout_seconds=6, stop_seconds=14)
    fleet.wait_event("child_ready", 20, role="worker")
    trap = proxy.hold_request("claim", app="rw:*", then=Then.SILENT)
    (job,) = add_jobs(truth, "work", ["{}"])
    trap.wait(20)
    (ready,) = fleet.find("child_ready", role="worker")
    os.kill(ready["pid"], signal.SIGKILL)
    fleet.wait_event("child_exited", 10, pid=ready["pid"])
    proxy.let_go(trap)
    row = looking.wait_state(truth, job, "succeeded", 15)
    assert row.crashes == 0
    wait_until(lambda: fleet.find("obituary"), 10, "the obituary")
    assert_sound(truth, killed=[ready["pid"]])


def test_a_killed_fleets_jobs_run_again_within_lease_and_two_seconds(
    worker: Worker, truth: Connection, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    jobs = add_jobs(truth, "gate", [json.dumps({"open": str(gate)})] * 4)
    first = worker(workers=4, processes=2)
    for job in jobs:
        looking.wait_start(truth, job)
    second = worker(workers=4, processes=2)
    second.wait_event("supervisor_ready", 20)
    killed = first.processes()
    at = looking.scalar(truth, "SELECT clock_timestamp()")
    first.kill_all()
    gate.touch()
    for job in jobs:
        looking.wait_state(truth, job, "succeeded", 20)
        assert (looking.claims(truth, job)[1] - at).total_seconds() <= 2 + 2
    assert_sound(truth, killed=killed)


@pytest.mark.parametrize("how", ["effect", "transaction", "finish"])
def test_a_zombie_fleet_commits_nothing(
    worker: Worker, truth: Connection, tmp_path: Path, how: str
) -> None:
    gate = tmp_path / "gate"
    (job,) = add_jobs(truth, "gate", [json.dumps({"open": str(gate), "how": how})])
    zombie = worker()
    looking.wait_start(truth, job)
    stopped = zombie.processes()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    gate.touch()
    other = worker()
    row = looking.wait_state(truth, job, "succeeded", 20)
    assert row.fence == 3  # claim, expiry, claim
    for pid in reversed(stopped):
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: looking.ends(truth, job) == 2, 20, "the zombie's handler ended")
    zombie.wait_event("job_abandoned", 20, job_id=job)
    for fleet in (zombie, other):
        fleet.terminate()
        fleet.wait(15)
    assert looking.effects(truth, job) == 1
    assert_sound(truth, killed=stopped)


@pytest.mark.parametrize("point", ["after_handler", "after_first_effect", "before_commit"])
def test_a_zombie_inside_its_finish_commits_nothing(
    worker: Worker, truth: Connection, tmp_path: Path, point: str
) -> None:
    (job,) = add_jobs(truth, "work", ["{}"])
    token = tmp_path / "token"
    zombie = worker(failpoint=f"{point}:stop@{token}")
    wait_until(token.exists, 20, "the point reached")
    stopped = zombie.processes()
    for pid in stopped:  # its parent first, before it misses the child's beat
        os.kill(pid, signal.SIGSTOP)
    worker()
    looking.wait_state(truth, job, "succeeded", 20)
    assert looking.row(truth, job).fence == 3
    for pid in reversed(stopped):
        os.kill(pid, signal.SIGCONT)
    zombie.terminate()
    zombie.wait(15)
    assert looking.effects(truth, job) == 1
    assert_sound(truth, killed=stopped)
