"""Every event moves the metrics its rules name, and every metric is moved by something."""

from __future__ import annotations

import pytest

from reliable_worker.jobs.counters import Arena, Histogram, Snapshot
from reliable_worker.jobs.events import Event
from reliable_worker.jobs.meters import RULES, subscriber
from reliable_worker.jobs.metrics import METRICS

JOB = {"job_id": 1, "attempt": 1, "owner": "o", "kind": "mail", "queue": "slow"}

# What every emitter of an event gives: enough to move each metric of its rules.
FIELDS: dict[str, object] = {
    **JOB,
    "duration_seconds": 0.3,
    "wait_seconds": 2.0,
    "count": 3,
    "freed": 2,
    "dead": 1,
    "outcome": "retried",
    "reason": "error",
    "cause": "crash",
    "role": "worker",
    "lane": "finish",
    "finish_seconds": 0.02,
    "margin_seconds": 17.0,
}


def measured(*events: tuple[str, dict[str, object]], level: str = "info") -> Snapshot:
    arena = Arena(children=1, threads=1)
    measure = subscriber(arena.child(0))
    for name, fields in events:
        measure(Event(name, level, 0.0, fields))
    return arena.snapshot()


@pytest.mark.parametrize("name", RULES)
def test_an_event_moves_all_metrics_of_its_rules(name: str) -> None:
    outcomes = {rule.only or "retried" for rule in RULES[name]}
    snapshot = measured(*((name, {**FIELDS, "outcome": outcome}) for outcome in outcomes))
    for rule in RULES[name]:
        [value] = snapshot[rule.metric].values()
        number = sum(value.counts) if isinstance(value, Histogram) else value
        assert number > 0, rule.metric


@pytest.mark.parametrize("name", RULES)
def test_an_event_without_fields_does_no_harm(name: str) -> None:
    measured((name, {}), (name, dict.fromkeys(FIELDS, "text")), (name, dict.fromkeys(FIELDS)))


def test_every_metric_kept_in_cells_is_moved_by_something() -> None:
    by_rules = {rule.metric for rules in RULES.values() for rule in rules}
    by_hand = {"events_total", "samples_dropped_total", "pool_connections", "listeners_up"}
    assert by_rules | by_hand == {m.name for m in METRICS.values() if m.source == "cells"}


def test_a_failure_is_a_retry_only_while_attempts_are_left() -> None:
    failed = {**FIELDS, "reason": "timeout"}
    snapshot = measured(("job_failed", failed), ("job_failed", {**failed, "outcome": "dead"}))
    assert snapshot["jobs_finished_total"] == {
        ("slow", "mail", "retried"): 1,
        ("slow", "mail", "dead"): 1,
    }
    assert snapshot["retries_total"] == {(): 1}
    assert snapshot["failures_total"] == {("timeout",): 2}


def test_amounts_come_from_the_event() -> None:
    snapshot = measured(("claimed", FIELDS), ("obituary", FIELDS), ("job_succeeded", FIELDS))
    assert snapshot["jobs_claimed_total"] == {(): 3}
    assert snapshot["obituary_freed_total"] == {("crash",): 2}
    assert snapshot["busy_seconds_total"] == {("slow", "mail"): 0.3}
    histogram = snapshot["run_seconds"][()]
    assert isinstance(histogram, Histogram)
    assert histogram.sum == 0.3


def test_lines_of_debug_are_not_counted_as_lines() -> None:
    assert "events_total" not in measured(("job_started", FIELDS), level="debug")
    assert measured(("job_failed", FIELDS), level="error")["events_total"] == {("error",): 1}


def test_names_follow_the_conventions() -> None:
    for metric in METRICS.values():
        assert metric.name == metric.name.lower()
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.help.endswith(".")
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert list(metric.buckets) == sorted(metric.buckets)
