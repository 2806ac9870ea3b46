"""What an operator sees is what happened: counters against the audit, every metric of the spec
moved by its cause, lines of JSON, and a worker that does not care whether anybody reads them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.faults.evidence import add_jobs
from tests.fixtures.commands import ROOT, Fleet, as_environment, clean_environment
from tests.fixtures.scraping import Samples, scrape, scraping, total
from tests.fixtures.waiting import wait_until
from tests.truths import looking

Connection = psycopg.Connection[Any]
Worker = Callable[..., Fleet]

SECONDS = 30.0

# From the audit: runs by queue, kind and how they ended, as the metric names it. A failure keeps
# its attempt; a snooze and a release give it back.
ENDED = """
SELECT j.queue, j.kind, CASE
         WHEN a.new_state = 'ready' AND a.new_snoozes > a.old_snoozes THEN 'snoozed'
         WHEN a.new_state = 'ready' THEN 'retried'
         WHEN a.new_state = 'dead' AND a.new_error LIKE 'no use%%' THEN 'discarded'
         ELSE a.new_state
       END, count(*)
FROM audit AS a JOIN jobs AS j ON j.id = a.id
WHERE a.old_state = 'running' AND a.new_state <> 'running'
GROUP BY 1, 2, 3
"""
CLAIMED = """
SELECT count(*) FROM audit WHERE old_state = 'ready' AND new_state = 'running'
"""


def finished(samples: Samples) -> dict[tuple[str, str, str], float]:
    """jobs_finished_total by (queue, kind, outcome)."""
    found = {}
    for labels, value in samples.get("jobs_finished_total", {}).items():
        names = dict(labels)
        found[names["queue"], names["kind"], names["outcome"]] = value
    return found


@pytest.mark.quick
def test_counters_equal_what_the_audit_saw(
    worker: Worker, truth: Connection, tmp_path: Path
) -> None:
    until = tmp_path / "until"
    hows = ["effect", "transaction", "finish"]
    add_jobs(truth, "work", [json.dumps({"how": how}) for how in hows * 10])
    add_jobs(truth, "work", ["{}"] * 10, queue="slow", prefix="slow")
    add_jobs(truth, "fail", [json.dumps({"times": 1})] * 5)
    add_jobs(truth, "fail", ["{}"] * 4, max_attempts=1, prefix="dead")
    add_jobs(truth, "snooze", [json.dumps({"until": str(until)})] * 2)
    fleet = worker(workers=4, processes=2, retry_base_seconds=0.1, census_seconds=0.2)
    address = fleet.metrics_address()
    with scraping(address):
        wait_until(lambda: len(fleet.find("job_snoozed")) >= 4, SECONDS, "some snoozes")
        until.touch()
        looking.wait_states(truth, {"succeeded": 47, "dead": 4}, SECONDS)
        audited = {(q, k, o): n for q, k, o, n in truth.execute(ENDED).fetchall()}
        wait_until(lambda: finished(scrape(address)) == audited, SECONDS, f"counters as {audited}")

        def counted() -> bool:
            # the numbers of one census are of moments close together, not of one moment
            found = scrape(address)
            return total(found, "jobs_dead") == 4 and total(found, "jobs_ready") == 0

        wait_until(counted, SECONDS, "a census that saw the end")
    found = scrape(address)
    claims = looking.scalar(truth, CLAIMED)
    assert total(found, "jobs_claimed_total") == claims == sum(audited.values())
    assert total(found, "jobs_started_total") == total(found, "wait_seconds_count") == claims
    assert total(found, "run_seconds_count") == claims
    assert total(found, "retries_total") == total(found, "jobs_finished_total", outcome="retried")
    assert total(found, "failures_total", reason="error") == 5 + 4
    assert total(found, "finish_seconds_count") == 47
    assert total(found, "lease_margin_seconds_count") == 47
    assert total(found, "lease_margin_seconds_bucket", le="1.0") == 0
    assert total(found, "heartbeats_missed_total") == total(found, "refunds_total") == 0
    for lane in ("work", "control", "reaper", "census"):
        assert total(found, "query_seconds_count", lane=lane) > 0, lane
    assert total(found, "listeners_up") == 2
    assert total(found, "table_dead_tuples", table="jobs") >= 0
    assert total(found, "pool_wait_seconds_count", lane="work") > 0
    assert total(found, "pool_wait_seconds_count", lane="control") > 0
    assert total(found, "pool_connections") > 0
    assert total(found, "children", role="worker") == 2
    assert total(found, "children", role="maintenance") == 1
    assert total(found, "jobs_ready") == total(found, "jobs_running") == 0
    assert total(found, "samples_dropped_total") == total(found, "log_lines_dropped_total") == 0
    now = looking.scalar(truth, "SELECT extract(epoch FROM now())::float8")
    assert now - 60 < total(found, "sample_timestamp_seconds") <= now + 1
    fleet.terminate()
    assert fleet.wait(SECONDS) == 0
    assert not fleet.strays


def test_gauges_of_the_queue_follow_the_table(
    worker: Worker, truth: Connection, tmp_path: Path
) -> None:
    """Ready with its age, running, and expired: a lease that nobody has taken back yet."""
    (held,) = add_jobs(truth, "gate", [json.dumps({"open": str(tmp_path / "never")})], queue="busy")
    (old,) = add_jobs(truth, "nobody.knows", ["{}"], queue="waiting")
    truth.execute("UPDATE jobs SET available_at = now() - interval '90 s' WHERE id = %s", (old,))
    fleet = worker(census_seconds=0.2, reap_seconds=600, lease_seconds=30)
    address = fleet.metrics_address()
    looking.wait_start(truth, held)
    fleet.wait_event("database_connected", SECONDS, lane="reaper")
    (lost,) = add_jobs(truth, "nobody.knows", ["{}"], queue="lost", prefix="lost")
    # it runs out after the only pass of expiry there is before the test ends
    truth.execute(
        "UPDATE jobs SET state = 'running', attempts = 1, fence = 1, lease_owner = 'gone.0',"
        " claimed_at = now(), lease_until = now() + interval '3 s'"
        " WHERE id = %s",
        (lost,),
    )

    def seen() -> bool:
        found = scrape(address)
        return (
            total(found, "jobs_running", queue="busy") == 1
            and total(found, "jobs_ready", queue="waiting") == 1
            and 90 <= total(found, "oldest_ready_age_seconds", queue="waiting") < 600
            and total(found, "jobs_expired", queue="lost") == 1
        )

    wait_until(seen, SECONDS, "gauges that show the table")


def test_deaths_lost_leases_and_stale_finishes_are_counted(
    worker: Worker, truth: Connection, tmp_path: Path
) -> None:
    gate, token = tmp_path / "gate", tmp_path / "token"
    (stale,) = add_jobs(truth, "work", ["{}"])
    fleet = worker(
        failpoint=f"after_handler:hang@{token}", lease_seconds=30, workers=4, processes=1
    )
    address = fleet.metrics_address()
    with scraping(address):
        wait_until(token.exists, SECONDS, "a handler has returned")
        take(truth, stale)
        Path(f"{token}.go").touch()
        wait_until(lambda: total(scrape(address), "stale_finishes_total") == 1, SECONDS, "stale")
        (robbed, *others) = add_jobs(truth, "gate", [json.dumps({"open": str(gate)})] * 3)
        (pid,) = {looking.wait_start(truth, job) for job in (robbed, *others)}
        take(truth, robbed)
        wait_until(lambda: total(scrape(address), "leases_lost_total") >= 1, SECONDS, "lost")
        os.kill(pid, signal.SIGKILL)
        gate.touch()
        for job in others:
            looking.wait_state(truth, job, "succeeded", SECONDS)

        def told() -> bool:
            found = scrape(address)
            return (
                total(found, "child_exits_total", role="worker", cause="crash") == 1
                and total(found, "child_restarts_total") >= 1
                and total(found, "obituaries_total", cause="crash") >= 1
                and total(found, "jobs_finished_total", kind="gate", outcome="succeeded") == 2
            )

        wait_until(told, SECONDS, "the death and what came of it")
    assert total(scrape(address), "children_started_total", role="quarantine") >= 1


def take(conn: Connection, job_id: int) -> None:
    """Take the row from its holder, as another worker's claim after an expiry would."""
    conn.execute(
        "UPDATE jobs SET fence = fence + 1, lease_owner = 'other.0',"
        " lease_until = now() + interval '1 h' WHERE id = %s",
        (job_id,),
    )


@pytest.mark.quick
def test_a_stdout_nobody_reads_stops_neither_jobs_nor_signals(dsn: str, truth: Connection) -> None:
    """At level debug the jobs log ten times what the pipe holds (F99)."""
    count = 1_500
    add_jobs(truth, "message", [json.dumps({"message": "x"})] * count)
    reader, writer = os.pipe()
    settings = {
        "database_url": dsn,
        "metrics_address": "127.0.0.1:0",
        "log_level": "debug",
        "workers": 4,
        "processes": 2,
        "poll_seconds": 0.1,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "reliable_worker", "run"],
        env=clean_environment(**as_environment(settings)),
        stdout=writer,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    )
    os.close(writer)
    try:
        looking.wait_states(truth, {"succeeded": count}, 60)
        process.terminate()
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait(SECONDS)
    written = b""
    while part := os.read(reader, 1 << 20):
        written += part
    os.close(reader)
    lines = written.splitlines(keepends=True)
    # The pipe was full (it may be one page where a user has many), and nothing came after.
    assert 3_000 <= len(written) <= 2 * 65_536
    assert all(line.endswith(b"\n") and "event" in json.loads(line) for line in lines)


def test_a_taken_port_ends_the_run_before_the_first_claim(
    worker: Worker, truth: Connection
) -> None:
    (job,) = add_jobs(truth, "work", ["{}"], queue="later")
    first = worker("--queue", "other")
    address = first.metrics_address()
    second = worker(metrics_address=address)
    assert second.wait(SECONDS) == 1
    lines = second.stderr().splitlines()
    assert len(lines) == 1
    assert address in lines[0]
    assert looking.row(truth, job).fence == 0
