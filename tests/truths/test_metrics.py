"""Each metric of the specification is provoked and moves; counters equal the audit trigger's."""

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from tests.faults.evidence import add_jobs
from tests.faults.invariants import assert_sound
from tests.faults.proxy import Proxy
from tests.faults.wire import is_commit
from tests.fixtures.commands import Fleet
from tests.fixtures.waiting import wait_until
from tests.truths import looking
from tests.truths.scraping import scrape

Connection = psycopg.Connection[Any]
Worker = Callable[..., Fleet]

THIEF = (
    "UPDATE jobs SET fence = fence + 1, lease_owner = 'thief.0',"
    " lease_until = now() + interval '1 hour' WHERE id = %s"
)


class Move(NamedTuple):
    """A change of state as the trigger saw it, and the outcome it stands for."""

    queue: str
    kind: str
    old: str
    new: str
    snoozed: bool

    @property
    def ends(self) -> bool:
        """Whether a run ended."""
        return self.old == "running"

    @property
    def outcome(self) -> str:
        """The label of that outcome."""
        if self.new == "dead":
            return "discarded" if self.kind == "discard" else "dead"
        if self.new == "ready":
            return "snoozed" if self.snoozed else "retried"
        return self.new


def test_counters_equal_what_the_audit_trigger_saw(
    worker: Worker, truth: Connection, tmp_path: Path
) -> None:
    """Nothing is killed here, so the counts are exact."""
    until = tmp_path / "until"
    hows = ("effect", "transaction", "finish")
    payloads = [json.dumps({"how": hows[n % 3]}) for n in range(60)]
    add_jobs(truth, "work", payloads)
    add_jobs(truth, "fail", ['{"times": 1}'] * 3)
    add_jobs(truth, "fail", ["{}"] * 2, prefix="always", max_attempts=2, queue="other")
    add_jobs(truth, "discard", ["{}"] * 2)
    add_jobs(truth, "after", ["{}"])
    add_jobs(truth, "snooze", [json.dumps({"until": str(until)})])
    add_jobs(truth, "typed", ["[]"], max_attempts=1)
    fleet = worker(workers=4, processes=2, retry_base_seconds=0.1)
    wait_until(lambda: fleet.find("job_snoozed"), 20, "a snooze")
    until.touch()
    looking.wait_states(truth, {"succeeded": 60 + 3 + 1 + 1, "dead": 2 + 2 + 1}, 30)

    moves = [
        Move(*row)
        for row in truth.execute(
            "SELECT queue, kind, old_state, new_state, new_snoozes > old_snoozes"
            " FROM audit JOIN jobs USING (id) WHERE old_state <> new_state"
        )
    ]
    ended = Counter((move.queue, move.kind, move.outcome) for move in moves if move.ends)
    claimed = len([move for move in moves if move.new == "running"])
    wait_until(lambda: scrape(fleet).sum("jobs_finished_total") == claimed, 10, "every run counted")
    sample = scrape(fleet)
    assert sample.sum("jobs_claimed_total") == claimed
    assert sample.sum("jobs_started_total") == claimed
    for (queue, kind, outcome), number in ended.items():
        labels = {"queue": queue, "kind": kind, "outcome": outcome}
        assert sample.sum("jobs_finished_total", **labels) == number, labels
    assert sample.sum("jobs_finished_total") == sum(ended.values()) == claimed
    assert sample.sum("retries_total") == sum(
        number for (_, _, outcome), number in ended.items() if outcome == "retried"
    )
    assert sample.sum("run_seconds_count") == claimed
    assert sample.sum("wait_seconds_count") == claimed
    assert sample.sum("errors_after_commit_total") == 1
    assert sample.sum("failures_total", reason="decode") == 1
    assert_sound(truth)


def test_gauges_tell_the_queue_and_the_processes(
    worker: Worker, truth: Connection, tmp_path: Path
) -> None:
    gate = json.dumps({"open": str(tmp_path / "never")})
    (held,) = add_jobs(truth, "gate", [gate])
    (dead,) = add_jobs(truth, "fail", ["{}"], max_attempts=1)
    add_jobs(truth, "nobody.knows", ["{}"] * 3, queue="waiting")
    # a job of another owner whose lease has run out, and that nobody may expire just now
    (lapsed,) = add_jobs(truth, "nobody.knows", ["{}"], prefix="lapsed", queue="late")
    fleet = worker(census_seconds=0.2, reap_seconds=30)
    looking.wait_start(truth, held)
    looking.wait_state(truth, dead, "dead", 20)
    truth.execute(
        "UPDATE jobs SET state = 'running', attempts = 1, fence = 1, lease_owner = 'gone.0',"
        " lease_until = now() - interval '1 s', claimed_at = now() WHERE id = %s",
        (lapsed,),
    )

    def told() -> bool:
        sample = scrape(fleet)
        return (
            sample.sum("jobs_ready", queue="waiting") == 3
            and sample.sum("jobs_running", queue="default") == 1
            and sample.sum("jobs_dead", queue="default") == 1
            and sample.sum("jobs_expired", queue="late") == 1
            and sample.sum("oldest_ready_age_seconds", queue="waiting") > 0
        )

    wait_until(told, 20, "the queue told")
    first = scrape(fleet).sum("sample_timestamp_seconds")
    now = float(looking.scalar(truth, "SELECT extract(epoch FROM clock_timestamp())"))
    assert abs(now - first) < 60
    wait_until(lambda: scrape(fleet).sum("sample_timestamp_seconds") > first, 10, "a later sample")
    sample = scrape(fleet)
    assert sample.sum("children", role="worker") == 1
    assert sample.sum("children", role="maintenance") == 1
    assert sample.sum("ready") == 1
    assert sample.has("pool_connections", lane="work", state="idle")
    assert sample.sum("pool_connections", lane="control") == 1


def abandoned(fleet: Fleet) -> bool:
    return scrape(fleet).sum("abandoned_total") == 1


def test_losses_are_counted(worker: Worker, truth: Connection, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    held = json.dumps({"open": str(gate), "how": "transaction"})
    # a renewal finds the first stolen; the second's owner learns only when it finishes
    (found,) = add_jobs(truth, "gate", [held], prefix="found", queue="short")
    (stale,) = add_jobs(truth, "gate", [held], prefix="stale", queue="long")
    short = worker("--queue", "short", lease_seconds=2)
    long = worker("--queue", "long", lease_seconds=60, renew_seconds=20, stop_seconds=10)
    for job in (found, stale):
        looking.wait_start(truth, job)
        truth.execute(THIEF, (job,))
    wait_until(lambda: scrape(short).sum("leases_lost_total") == 1, 20, "the loss counted")
    gate.touch()
    wait_until(lambda: scrape(long).sum("stale_finishes_total") == 1, 20, "the stale finish")
    for fleet in (short, long):
        wait_until(partial(abandoned, fleet), 20, "the abandonment")
    assert looking.effects(truth, found) + looking.effects(truth, stale) == 0


def test_deaths_are_counted_and_counters_never_fall(worker: Worker, truth: Connection) -> None:
    add_jobs(truth, "work", ["{}"] * 5)
    fleet = worker(lease_seconds=10)
    looking.wait_all(truth, "succeeded", 20)
    wait_until(lambda: scrape(fleet).sum("jobs_finished_total") == 5, 10, "five counted")
    (poison,) = add_jobs(truth, "crash", [json.dumps({"signal": signal.SIGKILL})])
    looking.wait_state(truth, poison, "dead", 40)
    wait_until(
        lambda: scrape(fleet).sum("child_restarts_total", reason="crash") >= 1, 10, "a restart"
    )
    sample = scrape(fleet)
    assert sample.sum("jobs_finished_total", outcome="succeeded") == 5  # their process is dead
    assert sample.sum("child_exits_total", cause="crash") == 3
    assert sample.sum("obituaries_total", cause="crash") == 3
    assert sample.sum("children", role="worker") == 1
    everything = [int(n) for (n,) in truth.execute("SELECT DISTINCT pid FROM hist")]
    assert_sound(truth, killed=everything)


def test_the_databases_troubles_are_counted(
    proxied: Worker, truth: Connection, proxy: Proxy
) -> None:
    fleet = proxied(lease_seconds=20)
    fleet.wait_event("child_ready", 20, role="worker")
    trap = proxy.drop_reply(is_commit, app="*:work")
    add_jobs(truth, "work", ['{"how": "transaction"}'])
    trap.wait(20)
    wait_until(
        lambda: scrape(fleet).sum("resolved_finishes_total", outcome="committed") == 1,
        20,
        "the resolved commit",
    )
    assert scrape(fleet).sum("unknown_finishes_total") == 1
    assert scrape(fleet).sum("pool_wait_seconds_count") >= 1
    wait_until(lambda: any(a.endswith(":listen") for a in proxy.apps()), 20, "a listener")
    assert proxy.reset(app="*:listen") == 1
    wait_until(lambda: scrape(fleet).sum("listener_losses_total") >= 1, 20, "the listener lost")
    connects = scrape(fleet).sum("database_connects_total", lane="control")
    proxy.reset(app="*:control")
    wait_until(lambda: scrape(fleet).sum("claim_failures_total") >= 1, 20, "a failed claim")
    wait_until(
        lambda: scrape(fleet).sum("database_connects_total", lane="control") > connects,
        20,
        "a new control connection",
    )
    os.kill(fleet.pid, signal.SIGTERM)
    assert fleet.wait(15) == 0
