"""The rarer metrics, each moved by its cause: lost answers, lost sessions, odd ends of a run, and
a poison (test_observed.py shows the everyday ones and holds counters to the audit)."""

import json
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg

from tests.faults.evidence import add_jobs
from tests.faults.invariants import assert_sound
from tests.faults.proxy import Proxy
from tests.faults.wire import is_commit
from tests.fixtures.commands import Fleet
from tests.fixtures.scraping import scrape, total
from tests.fixtures.waiting import wait_until
from tests.truths import looking

Connection = psycopg.Connection[Any]
Worker = Callable[..., Fleet]

SECONDS = 30.0


def wait_total(address: str, least: float, name: str, **labels: str) -> None:
    """Return once the metric has come to `least`."""

    def reached() -> bool:
        return total(scrape(address), name, **labels) >= least

    wait_until(reached, SECONDS, f"{name} {labels} at {least}")


def test_odd_ends_of_a_run_are_counted(worker: Worker, truth: Connection) -> None:
    add_jobs(truth, "discard", ["{}"] * 2)
    add_jobs(truth, "after", ["{}"])
    add_jobs(truth, "typed", ["[]"], max_attempts=1)
    add_jobs(truth, "work", ['{"seconds": 60}'], max_attempts=1)
    truth.execute(
        "INSERT INTO jobs (idempotency_key, payload, attempts, max_attempts)"
        " VALUES ('exhausted by hand', '{}', 1, 1)"
    )
    fleet = worker(job_timeout_seconds=1, sweep_seconds=0.5)
    at = fleet.metrics_address()
    expect = partial(wait_total, at)
    expect(2, "jobs_finished_total", kind="discard", outcome="discarded")
    expect(1, "errors_after_commit_total")
    expect(1, "failures_total", reason="decode")
    expect(1, "failures_total", reason="timeout")
    expect(1, "sweeps_total")
    looking.wait_states(truth, {"succeeded": 1, "dead": 5}, SECONDS)
    assert_sound(truth)


def test_a_poisons_deaths_are_counted(worker: Worker, truth: Connection) -> None:
    (poison,) = add_jobs(truth, "crash", [json.dumps({"signal": signal.SIGKILL})])
    fleet = worker(lease_seconds=10)
    looking.wait_state(truth, poison, "dead", 40)
    expect = partial(wait_total, fleet.metrics_address())
    expect(3, "child_exits_total", cause="crash")
    expect(3, "obituaries_total", cause="crash")
    expect(1, "child_restarts_total", reason="crash")
    expect(1, "suspects_dead_total")
    expect(1, "children", role="worker")


def test_the_databases_troubles_are_counted(
    proxied: Worker, truth: Connection, proxy: Proxy
) -> None:
    fleet = proxied(lease_seconds=20)
    fleet.wait_event("child_ready", 20, role="worker")
    expect = partial(wait_total, fleet.metrics_address())
    trap = proxy.drop_reply(is_commit, app="*:work")
    add_jobs(truth, "work", ['{"how": "transaction"}'])
    trap.wait(20)
    expect(1, "unknown_finishes_total")
    expect(1, "resolved_finishes_total", outcome="committed")
    expect(1, "pool_wait_seconds_count", lane="work")
    wait_until(lambda: any(a.endswith(":listen") for a in proxy.apps()), 20, "a listener")
    proxy.reset(app="*:listen")
    expect(1, "listener_losses_total")
    connects = total(scrape(fleet.metrics_address()), "database_connects_total", lane="control")
    proxy.reset(app="*:control")
    expect(1, "claim_failures_total")
    expect(connects + 1, "database_connects_total", lane="control")
    proxy.reset(app="*:reaper")
    expect(1, "reaper_failures_total")
    trap = proxy.drop_reply("lease_owner = ($6", app="*:control")
    add_jobs(truth, "work", ["{}"], prefix="unheard")
    trap.wait(20)
    expect(1, "claims_recovered_total")
