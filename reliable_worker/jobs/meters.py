"""Which event moves which metric: the only place where the two meet.

Floor 0; imports `events`, `metrics` and `counters`. A rule takes a metric's labels from the event's
fields of the same names, unless the rule says otherwise, and its amount from a field or 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reliable_worker.jobs.counters import Meters
from reliable_worker.jobs.events import Event, subscribe
from reliable_worker.jobs.metrics import METRICS

# A label whose field the event does not carry.
NONE = "none"


@dataclass(frozen=True, slots=True)
class Rule:
    """`amount`: the field that holds it, None for 1. `labels`: constants instead of fields.
    `only`: the rule holds for events whose field `outcome` says this."""

    metric: str
    amount: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    only: str | None = None


def _count(metric: str, amount: str | None = None, /, **labels: str) -> Rule:
    return Rule(metric, amount, tuple(labels.items()))


def _finished(outcome: str) -> tuple[Rule, ...]:
    """A run that ended: counted by outcome, timed."""
    return (
        _count("jobs_finished_total", outcome=outcome),
        _count("busy_seconds_total", "duration_seconds"),
        _count("run_seconds", "duration_seconds"),
    )


RULES: dict[str, tuple[Rule, ...]] = {
    # -- a job's run
    "claimed": (
        _count("jobs_claimed_total", "count"),
        _count("claim_seconds", "duration_seconds"),
    ),
    "job_started": (_count("jobs_started_total"), _count("wait_seconds", "wait_seconds")),
    "job_succeeded": (
        *_finished("succeeded"),
        _count("finish_seconds", "finish_seconds"),
        _count("lease_margin_seconds", "margin_seconds"),
    ),
    "job_failed": (
        _count("jobs_finished_total"),
        _count("failures_total"),
        Rule("retries_total", only="retried"),
        *_finished("")[1:],
    ),
    "job_snoozed": _finished("snoozed"),
    "job_discarded": _finished("discarded"),
    "job_released": (
        *_finished("released"),
        _count("releases_total"),
        Rule("refunds_total", only="refunded"),
    ),
    "job_abandoned": (*_finished("abandoned"), _count("abandoned_total")),
    "lease_lost": (_count("leases_lost_total"),),
    "stale_finish": (_count("stale_finishes_total"),),
    "heartbeats_missed": (_count("heartbeats_missed_total", "count"),),
    "renew_failed": (_count("renewal_failures_total"),),
    "failure_update_failed": (_count("failure_update_failures_total"),),
    "error_after_commit": (_count("errors_after_commit_total"),),
    "finish_unknown": (_count("unknown_finishes_total"),),
    "finish_resolved": (_count("resolved_finishes_total"),),
    "thread_stuck": (_count("stuck_threads_total"),),
    # -- the database
    "claim_failed": (_count("claim_failures_total"),),
    "claim_recovered": (_count("claims_recovered_total", "count"),),
    "query_done": (_count("query_seconds", "duration_seconds"),),
    "connection_lent": (_count("pool_wait_seconds", "wait_seconds"),),
    "database_connected": (_count("database_connects_total"),),
    "listener_lost": (_count("listener_losses_total"),),
    # -- maintenance
    "jobs_expired": (_count("expiries_total", "count"),),
    "jobs_buried": (_count("sweeps_total", "count"),),
    "obituary": (
        _count("obituaries_total"),
        _count("obituary_freed_total", "freed"),
        _count("obituary_dead_total", "dead"),
    ),
    "jobs_pruned": tuple(
        _count("jobs_pruned_total", state, state=state)
        for state in ("succeeded", "cancelled", "dead")
    ),
    "suspect_dead": (_count("suspects_dead_total"),),
    "reaper_failed": (_count("reaper_failures_total"),),
    "census_failed": (_count("census_failures_total"),),
    # -- the processes
    "child_started": (_count("children_started_total"),),
    "child_exited": (_count("child_exits_total"),),
    "child_restarted": (_count("child_restarts_total"),),
    "child_killed": (_count("child_kills_total"),),
    "fork_failed": (_count("fork_failures_total"),),
    "reload_complete": (_count("reloads_total", result="complete"),),
    "reload_failed": (_count("reloads_total", result="failed"),),
    # -- the observers
    "logs_dropped": (_count("log_lines_dropped_total", "count"),),
    "http_failed": (_count("http_failures_total"),),
}

Step = Callable[[Event], None]


def attach(meters: Meters) -> None:
    """Let this process's events move these meters: once after every fork, and in the parent."""
    subscribe(subscriber(meters))


def subscriber(meters: Meters) -> Callable[[Event], None]:
    """The function that applies the rules to an event."""
    table = {name: tuple(_step(meters, rule) for rule in rules) for name, rules in RULES.items()}

    def measure(event: Event) -> None:
        if event.level != "debug":
            meters.add("events_total", (event.level,))
        for step in table.get(event.name, ()):
            step(event)

    return measure


def _step(meters: Meters, rule: Rule) -> Step:
    """One rule, its look-ups done beforehand."""
    metric = METRICS[rule.metric]
    constants = dict(rule.labels)
    sources = tuple((label, constants.get(label)) for label in metric.labels)
    write = meters.observe if metric.kind == "histogram" else meters.add
    name, amount, only = rule.metric, rule.amount, rule.only

    def step(event: Event) -> None:
        fields = event.fields
        if only is not None and fields.get("outcome") != only:
            return
        value = 1.0 if amount is None else _number(fields.get(amount))
        if value is not None:
            labels = tuple(
                str(fields.get(label) or NONE) if constant is None else constant
                for label, constant in sources
            )
            write(name, labels, value)

    return step


def _number(value: object) -> float | None:
    """The field as an amount; None where the event does not carry it or it is no number."""
    if isinstance(value, float):
        return value
    # A count beyond 2^53 is no count, and beyond 10^308 not even a float.
    return float(value) if isinstance(value, int) and value < 2**53 else None
