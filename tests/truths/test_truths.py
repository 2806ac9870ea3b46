"""The nine truths, each on its own, with one worker (truth 2 under load stands in
test_exclusive_leases.py, truth 8 in test_budgets.py)."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.faults.evidence import add_jobs
from tests.faults.invariants import assert_sound
from tests.fixtures.commands import Fleet
from tests.fixtures.postgres import ROOT, Server
from tests.fixtures.waiting import wait_until
from tests.truths import looking

Connection = psycopg.Connection[Any]
Worker = Callable[..., Fleet]


@pytest.mark.quick
def test_1_schema_and_partial_indexes_apply(server: Server, empty_dsn: str) -> None:
    name = psycopg.conninfo.conninfo_to_dict(empty_dsn)["dbname"]
    server.psql(str(name), "-f", str(ROOT / "schema.sql"))
    with psycopg.connect(empty_dsn) as conn:
        partial = {
            name
            for (name,) in conn.execute(
                "SELECT indexname FROM pg_indexes WHERE tablename = 'jobs'"
                " AND indexdef LIKE '%WHERE%'"
            )
        }
    assert {"jobs_claimable_idx", "jobs_suspect_idx", "jobs_expired_idx"} <= partial


@pytest.mark.quick
def test_3_a_stop_between_claim_and_dispatch_starts_nothing(
    worker: Worker, truth: Connection, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    (job,) = add_jobs(truth, "work", ["{}"], max_attempts=1)
    fleet = worker(failpoint=f"after_claim_commit:hang@{token}")
    wait_until(token.exists, 20, "the claim committed")
    assert looking.row(truth, job).state == "running"
    fleet.terminate()
    fleet.wait_event("shutdown_started", 5)
    Path(f"{token}.go").touch()
    assert fleet.wait(10) == 0
    assert looking.starts(truth) == 0
    row = looking.row(truth, job)
    assert (row.state, row.attempts) == ("ready", 0)
    assert_sound(truth, quiet=False)


def test_4_a_crashed_workers_job_is_claimable_once_its_lease_expires(
    worker: Worker, truth: Connection, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    (job,) = add_jobs(truth, "gate", [json.dumps({"open": str(gate)})])
    first = worker()
    pid = looking.wait_start(truth, job)
    killed = first.processes()
    first.kill_all()
    until = looking.scalar(truth, "SELECT lease_until FROM jobs WHERE id = %s", job)
    gate.touch()
    worker()
    looking.wait_state(truth, job, "succeeded", 20)
    second = looking.claims(truth, job)[1]
    assert second >= until
    assert (second - until).total_seconds() <= 2
    assert looking.row(truth, job).attempts == 2  # nobody saw why: the attempt stays spent
    assert pid in killed
    assert_sound(truth, killed=killed)


def test_5_a_heartbeat_that_finds_the_lease_lost_stops_the_handler(
    worker: Worker, truth: Connection, tmp_path: Path
) -> None:
    (job,) = add_jobs(truth, "gate", [json.dumps({"open": str(tmp_path / "never")})])
    fleet = worker()
    looking.wait_start(truth, job)
    truth.execute(
        "UPDATE jobs SET fence = fence + 1, lease_owner = 'thief.0',"
        " lease_until = now() + interval '1 hour' WHERE id = %s",
        (job,),
    )
    wait_until(lambda: looking.ends(truth, job) == 1, 10, "the handler stopped")
    fleet.wait_event("lease_lost", 5, job_id=job)
    fleet.wait_event("job_abandoned", 5, job_id=job)
    assert looking.row(truth, job).owner == "thief.0"
    assert looking.effects(truth, job) == 0


def test_6_failures_retry_with_delay_and_end_dead(worker: Worker, truth: Connection) -> None:
    (job,) = add_jobs(truth, "fail", ["{}"], max_attempts=3)
    fleet = worker(retry_base_seconds=0.3)
    row = looking.wait_state(truth, job, "dead", 20)
    assert row.attempts == 3
    assert row.error == "RuntimeError: attempt 3 failed on purpose"
    first, second = looking.gaps(looking.claims(truth, job))
    assert first >= 0.3
    assert second >= 0.6
    assert len(fleet.find("job_failed", job_id=job)) == 3
    assert_sound(truth)


ALL = ("effect", "transaction", "finish")
# Once the handler has returned, a transaction of its own has committed long ago.
POINTS = {
    "before_dispatch": ALL,
    "after_handler": ("effect",),
    "after_first_effect": ALL,
    "before_commit": ALL,
}


@pytest.mark.parametrize("point", POINTS)
def test_7_redelivery_leaves_one_effect_per_key(
    worker: Worker, truth: Connection, tmp_path: Path, point: str
) -> None:
    hows = POINTS[point]
    for how in hows:
        add_jobs(truth, "work", [json.dumps({"how": how})], prefix=how, queue=how)
        order = f"{point}:kill@{tmp_path}/{how}"
        worker("--queue", how, failpoint=order, workers=1)
    looking.wait_all(truth, "succeeded", 40)
    assert looking.scalar(truth, "SELECT min(fence) FROM jobs") >= 2  # each ran twice
    assert_sound(
        truth,
        keys=[f"{how}-1" for how in hows],
        killed=[int((tmp_path / how).read_text()) for how in hows],
    )


@pytest.mark.parametrize("how", ALL)
def test_7_a_death_after_the_commit_redelivers_nothing(
    worker: Worker, truth: Connection, tmp_path: Path, how: str
) -> None:
    (job,) = add_jobs(truth, "work", [json.dumps({"how": how})])
    fleet = worker(failpoint=f"after_commit:kill@{tmp_path}/token", workers=1)
    died = int(wait_until(lambda: tmp_path / "token", 20, "the death").name == "token") or 0
    wait_until((tmp_path / "token").exists, 20, "the death")
    died = int((tmp_path / "token").read_text())
    fleet.wait_event("obituary", 20)
    row = looking.row(truth, job)
    assert (row.state, row.fence) == ("succeeded", 1)
    assert looking.starts(truth, job) == 1
    assert_sound(truth, killed=[died])


def test_9_logs_and_queries_reveal_backlog_failures_and_leases(
    worker: Worker,
    run_cli: Callable[..., Any],
    truth: Connection,
    dsn: str,
    tmp_path: Path,
) -> None:
    (held,) = add_jobs(truth, "gate", [json.dumps({"open": str(tmp_path / "never")})])
    (bad,) = add_jobs(truth, "fail", ["{}"], max_attempts=1)
    add_jobs(truth, "nobody.knows", ["{}", "{}"])
    fleet = worker(census_seconds=0.2)
    looking.wait_state(truth, bad, "dead", 20)
    looking.wait_start(truth, held)
    failed = fleet.wait_event("job_failed", 5, job_id=bad)
    assert failed["attempt"] == 1
    assert failed["kind"] == "fail"
    assert "on purpose" in failed["error"]
    env = {"DATABASE_URL": dsn}
    listed = json.loads(run_cli(["queues", "list", "--json"], env=env).stdout)
    assert "default" in json.dumps(listed)
    dead = run_cli(["jobs", "list", "--state", "dead", "--json"], env=env)
    assert "on purpose" in dead.stdout
    shown = run_cli(["jobs", "show", str(held), "--json"], env=env)
    assert str(looking.row(truth, held).owner) in shown.stdout
    os.kill(fleet.pid, signal.SIGTERM)
    assert fleet.wait(15) == 0
    assert not fleet.strays
