"""/metrics is valid, complete, escaped, and asks nobody."""

from __future__ import annotations

import math
import os
import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from reliable_worker.jobs.counters import SERIES, Arena
from reliable_worker.jobs.events import Event
from reliable_worker.jobs.meters import RULES, subscriber
from reliable_worker.jobs.metrics import METRICS, OTHER, PREFIX
from reliable_worker.process import Role
from reliable_worker.supervisor.metrics import Metrics

SPEC = (
    *("jobs_ready", "jobs_running", "jobs_expired", "jobs_dead", "oldest_ready_age_seconds"),
    *("sample_timestamp_seconds", "jobs_finished_total", "retries_total", "leases_lost_total"),
    *("stale_finishes_total", "run_seconds", "wait_seconds", "pool_connections"),
    *("pool_wait_seconds", "children", "child_restarts_total"),
)

DATABASE = {
    "oldest_transaction_age_seconds": 12.5,
    "table_live_tuples": {"jobs": 1000},
    "table_dead_tuples": {"jobs": 40},
}
QUEUE = {"ready": 5, "running": 2, "expired": 1, "dead": 7, "oldest_ready_age_seconds": 1.5}

# What a user may call a queue or a kind, and an exposition must survive.
HOSTILE = ['a"b', "a\\", "a\nb 1", "\x1b[31m", "ü𝕏", "\ud800", '{le="1"}', ""]


def provoked(kind: str = "mail", queue: str = "slow") -> Arena:
    """Counters after one of every event."""
    arena = Arena(children=1, threads=1)
    meters = arena.child(0)
    measure = subscriber(meters)
    fields: dict[str, object] = {
        "kind": kind,
        "queue": queue,
        "lane": "finish",
        "role": "worker",
        "cause": "crash",
        "reason": "error",
        "outcome": "retried",
        "count": 3,
        "finish_seconds": 0.02,
        "margin_seconds": 17.0,
        "freed": 2,
        "dead": 1,
        "duration_seconds": 0.3,
        "wait_seconds": 2.0,
    }
    for name in RULES:
        measure(Event(name, "info", 0.0, fields))
    measure(Event("job_released", "info", 0.0, {**fields, "outcome": "refunded"}))
    meters.gauge("pool_connections", ("finish", "idle"), 4)
    return arena


def metrics(arena: Arena) -> Metrics:
    return Metrics(arena, children=lambda: [(Role.WORKER, os.getpid())], ready=lambda: True)


def samples(body: bytes) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            found.setdefault(sample.name.removeprefix(PREFIX), {})[labels] = sample.value
    return found


@pytest.mark.quick
def test_every_metric_of_the_spec_and_of_the_table_is_shown() -> None:
    shown = metrics(provoked())
    shown.take_census(
        {"say": "census", "unix": 1.8e9, "queues": {"slow": QUEUE}, "database": DATABASE}
    )
    found = samples(shown.render())
    for name in {*SPEC, *METRICS}:
        assert name in found or f"{name}_count" in found, name
    assert found["jobs_dead"] == {(("queue", "slow"),): 7}
    assert found["sample_timestamp_seconds"] == {(): 1.8e9}
    assert found["oldest_transaction_age_seconds"] == {(): 12.5}
    assert found["table_dead_tuples"] == {(("table", "jobs"),): 40}
    assert found["lease_margin_seconds_bucket"][("le", "15.0"),] == 0
    assert found["lease_margin_seconds_bucket"][("le", "20.0"),] == 1
    assert found["children"][("role", "worker"),] == 1
    assert found["children"][("role", "quarantine"),] == 0
    assert found["children_resident_bytes"][("role", "worker"),] > 1_000_000
    assert found["run_seconds_bucket"][("le", "0.25"),] == 0
    assert found["run_seconds_bucket"][("le", "0.5"),] == found["run_seconds_count"][()] > 0
    assert found["run_seconds_bucket"][("le", "+Inf"),] == found["run_seconds_count"][()]


def test_before_anything_happened_counters_stand_at_zero_and_the_queue_is_unknown() -> None:
    found = samples(metrics(Arena(children=1, threads=1)).render())
    assert found["retries_total"] == {(): 0}
    assert found["run_seconds_count"] == {(): 0}
    assert "jobs_ready" not in found
    assert "sample_timestamp_seconds" not in found


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_users_cannot_break_the_exposition(name: str) -> None:
    shown = metrics(provoked(kind=name, queue=name))
    shown.take_census({"unix": 1.0, "queues": {name: QUEUE}})
    found = samples(shown.render())
    [(labels, value)] = found["jobs_ready"].items()
    assert value == 5
    assert dict(labels)["queue"] == name.encode("utf-8", "backslashreplace").decode()
    assert sum(found["jobs_finished_total"].values()) > 0


def test_a_new_census_replaces_the_old_one() -> None:
    shown = metrics(Arena(children=1, threads=1))
    shown.take_census({"unix": 1.0, "queues": {"a": QUEUE, "b": QUEUE}})
    shown.take_census({"unix": 2.0, "queues": {"b": {**QUEUE, "ready": 0}}})
    found = samples(shown.render())
    assert found["jobs_ready"] == {(("queue", "b"),): 0}
    assert found["sample_timestamp_seconds"] == {(): 2.0}


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"unix": "x", "queues": {}},
        {"unix": 1, "queues": []},
        {"unix": 1, "queues": {"q": 3}},
        {"unix": 1, "queues": {"q": {"ready": None, "dead": 1}}},
        {"unix": 1, "queues": {"q": {"ready": "x"}}},
        {"unix": 1, "queues": {"q": {"ready": math.nan}}},
        {"unix": 1, "queues": {}, "database": 7},
        {"unix": 1, "queues": {}, "database": {"table_dead_tuples": {"jobs": "x"}}},
        {"unix": 1, "queues": {}, "database": {"table_dead_tuples": 1}},
        {"unix": 1, "queues": {}, "database": {"oldest_transaction_age_seconds": {"a": 1}}},
    ],
)
def test_a_malformed_census_breaks_nothing(message: dict[str, object]) -> None:
    shown = metrics(Arena(children=1, threads=1))
    shown.take_census(message)
    found = samples(shown.render())
    assert not {"jobs_ready", "table_dead_tuples", "oldest_transaction_age_seconds"} & set(found)


def test_many_queues_are_bounded_and_their_jobs_still_counted() -> None:
    shown = metrics(Arena(children=1, threads=1))
    queues = {f"queue-{n}": {**QUEUE, "oldest_ready_age_seconds": n} for n in range(100_000)}
    shown.take_census({"unix": 1.0, "queues": queues})
    found = samples(shown.render())
    assert len(found["jobs_ready"]) == SERIES + 1
    assert sum(found["jobs_ready"].values()) == 500_000
    assert found["oldest_ready_age_seconds"][("queue", OTHER),] == 99_999


def test_a_child_that_has_just_gone_is_no_error() -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    shown = Metrics(
        Arena(children=1, threads=1), children=lambda: [(Role.TRIAL, pid)], ready=lambda: False
    )
    found = samples(shown.render())
    assert found["children"][("role", "trial"),] == 1
    assert found["children_resident_bytes"][("role", "trial"),] == 0
    assert found["ready"] == {(): 0}


def test_promtool_finds_nothing_to_say() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    shown = metrics(provoked(kind=HOSTILE[2], queue=HOSTILE[0]))
    shown.take_census({"unix": 1.8e9, "queues": {"slow": QUEUE, HOSTILE[1]: QUEUE}})
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=shown.render(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
