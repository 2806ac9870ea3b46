"""Every metric this project exposes, in one table: name, type, help, labels, buckets.

Floor 0; imports nothing of the package. `counters` keeps the numbers of the processes, `meters`
says which event moves which metric, `supervisor/metrics` renders all of it. Names stand without
their prefix `reliable_worker_`; units last. A label is open (queue, kind: whatever users write) or
closed (its values come from this code), which decides what becomes of it when there are too many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREFIX = "reliable_worker_"

# What an open label says when its true value found no room any more (F105).
OTHER = "other"
OPEN_LABELS = frozenset({"queue", "kind"})

# From a no-op (1 ms) to past the default job timeout (20 s), with one step for longer budgets.
RUN_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 60.0)
# Waiting has no natural end: a backlog may be hours old.
WAIT_BUCKETS = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0)
# One statement: its usual fraction of a millisecond up to the query budget (3 s).
STATEMENT_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 3.0)
# A finish is some statements and waits for its turn; past its budget (5 s) it is tried again.
FINISH_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0)
# What is left of a lease of 30 s: fine where it is nearly used up, whatever lease was chosen.
MARGIN_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One family. `source` says who knows its value: the processes' own cells, or the parent."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    source: Literal["cells", "parent"] = "cells"

    @property
    def cells(self) -> int:
        """How many 8-byte cells one series takes: a histogram has its sum, its buckets, +Inf."""
        return len(self.buckets) + 2 if self.kind == "histogram" else 1


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, "counter", text, labels)


def _histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Metric:
    return Metric(name, "histogram", text, labels, buckets)


def _known(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, "gauge", text, labels, source="parent")


_TABLE = (
    # -- the queue, from the census on a timer, never counted per scrape
    _known("jobs_ready", "Jobs waiting to run, scheduled included; up to 10,000.", "queue"),
    _known("jobs_running", "Jobs held under a lease; up to 10,000 in all.", "queue"),
    _known("jobs_expired", "Running jobs whose lease has run out.", "queue"),
    _known("jobs_dead", "Jobs that will not run again by themselves; up to 10,000.", "queue"),
    _known("oldest_ready_age_seconds", "How long the oldest job due has waited.", "queue"),
    _known("sample_timestamp_seconds", "When the queue was last counted, by the database clock."),
    # -- the database itself, from the same census
    _known("oldest_transaction_age_seconds", "Age of the oldest transaction that pins vacuum."),
    _known("table_live_tuples", "Rows of the table, as the server estimates.", "table"),
    _known("table_dead_tuples", "Dead rows that vacuum has not yet removed.", "table"),
    # -- the processes
    _known("children", "Live child processes.", "role"),
    _known("children_resident_bytes", "Resident memory of the child processes.", "role"),
    _known("ready", "1 while /readyz answers 200."),
    _known("build_info", "Always 1; the labels say what runs.", "version", "python"),
    _counter("children_started_total", "Child processes forked.", "role"),
    _counter("child_exits_total", "Child processes that ended.", "role", "cause"),
    _counter("child_restarts_total", "Child processes replaced.", "reason"),
    _counter("child_kills_total", "Child processes the supervisor killed.", "role", "cause"),
    _counter("fork_failures_total", "Child processes that could not be forked.", "role"),
    _counter("reloads_total", "Reloads (SIGHUP) by their result.", "result"),
    # -- jobs
    _counter("jobs_claimed_total", "Jobs taken by claims."),
    _counter("jobs_started_total", "Runs begun.", "queue", "kind"),
    _counter("jobs_finished_total", "Runs ended, by outcome.", "queue", "kind", "outcome"),
    _counter("busy_seconds_total", "Time spent in handlers.", "queue", "kind"),
    _counter("retries_total", "Failed runs that will be tried again."),
    _counter("failures_total", "Failed runs by reason: error, timeout, decode, crash.", "reason"),
    _counter("releases_total", "Jobs handed back unfinished.", "reason"),
    _counter("refunds_total", "Releases that gave the attempt back after a fault.", "reason"),
    _counter("abandoned_total", "Runs given up without writing anything.", "reason"),
    _histogram("run_seconds", "How long runs took.", RUN_BUCKETS),
    _histogram("wait_seconds", "From due to started.", WAIT_BUCKETS),
    # -- leases and finishing
    _counter("leases_lost_total", "Leases taken by another, or not renewed in time."),
    _counter("stale_finishes_total", "Completions refused by the fence."),
    _histogram("finish_seconds", "Handler's end, or its BEGIN, to commit.", FINISH_BUCKETS),
    _histogram("lease_margin_seconds", "Left of the lease at the commit.", MARGIN_BUCKETS),
    _counter("heartbeats_missed_total", "Renewals that were due and came a whole period late."),
    _counter("renewal_failures_total", "Renewals that failed and were tried again."),
    _counter("failure_update_failures_total", "Failures that could not be recorded."),
    _counter("errors_after_commit_total", "Handlers that raised after their job had committed."),
    _counter("unknown_finishes_total", "Commits whose reply was lost."),
    _counter("resolved_finishes_total", "Lost replies whose outcome was found out.", "outcome"),
    _counter("stuck_threads_total", "Handlers that outlived their cancellation.", "queue", "kind"),
    # -- the database
    _counter("claim_failures_total", "Claims that failed."),
    _counter("claims_recovered_total", "Jobs found whose claim had committed unheard."),
    _histogram("claim_seconds", "How long a claim took.", STATEMENT_BUCKETS),
    Metric("pool_connections", "gauge", "Connections by lane and state.", ("lane", "state")),
    _histogram(
        "pool_wait_seconds", "How long a connection was waited for.", STATEMENT_BUCKETS, "lane"
    ),
    _histogram("query_seconds", "How long a statement took.", STATEMENT_BUCKETS, "lane"),
    _counter("database_connects_total", "Connections opened.", "lane"),
    Metric("listeners_up", "gauge", "Processes whose LISTEN connection stands."),
    _counter("listener_losses_total", "Times the LISTEN connection was lost."),
    # -- maintenance
    _counter("expiries_total", "Jobs taken from holders whose lease had run out."),
    _counter("sweeps_total", "Ready jobs buried because no attempt was left."),
    _counter("obituaries_total", "Dead processes whose jobs were freed.", "cause"),
    _counter("obituary_freed_total", "Jobs freed after their process died.", "cause"),
    _counter("obituary_dead_total", "Jobs buried after their process died.", "cause"),
    _counter("suspects_dead_total", "Jobs buried because their processes kept dying."),
    _counter("jobs_pruned_total", "Jobs deleted because their time to keep was over.", "state"),
    _counter("reaper_failures_total", "Passes of expire, sweep or obituary that failed."),
    _counter("census_failures_total", "Counts of the queue that failed."),
    # -- the observers themselves
    _counter("events_total", "Events worth a line at level info or above.", "level"),
    _counter("log_lines_dropped_total", "Log lines dropped because stdout was not read."),
    _counter("samples_dropped_total", "Measurements dropped for want of room."),
    _counter("http_failures_total", "Requests to the admin port that failed inside."),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _TABLE}
