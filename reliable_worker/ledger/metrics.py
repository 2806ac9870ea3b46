"""What GET /metrics of the ledger says. Floor 6; imports prometheus-client only.

One process, a few threads: prometheus-client's own cells, in a registry of our own. The reference
is made from the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

PREFIX = "reliable_ledger_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# From a millisecond to beyond the request's own budget of 2 s.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of the table."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


_TABLE = (
    Metric("http_requests_total", "counter", "Answers by route and status.", ("route", "status")),
    Metric("http_refusals_total", "counter", "Requests refused, by the problem's code.", ("code",)),
    Metric("request_seconds", "histogram", "From the whole request to its answer.", ("route",)),
    Metric("http_connections", "gauge", "Open HTTP connections."),
    Metric("requests_waiting", "gauge", "Requests that wait for a connection to the database."),
    Metric("pool_connections", "gauge", "Connections to the database, by state.", ("state",)),
    Metric("pool_size_max", "gauge", "Most connections the pool may have."),
    Metric("pool_wait_seconds", "histogram", "How long requests waited for a connection."),
    Metric("pool_connects_total", "counter", "Connections opened."),
    Metric("pool_discards_total", "counter", "Connections closed because they failed."),
    Metric("transfers_total", "counter", "Transfers asked for, by outcome.", ("outcome",)),
    Metric("rollbacks_total", "counter", "Transactions rolled back, by reason.", ("reason",)),
    Metric(
        "query_deadline_expiries_total",
        "counter",
        "Statements cut by their deadline, by who cut them: the server or this side.",
        ("by",),
    ),
    Metric("lock_timeout_expiries_total", "counter", "Locks that did not come in time.", ("at",)),
    Metric("retries_total", "counter", "Statements tried again.", ("reason",)),
    Metric("shed_total", "counter", "Requests turned away before they began.", ("reason",)),
    Metric("unknown_outcomes_total", "counter", "Requests whose outcome could not be learned."),
    Metric("database_up", "gauge", "Whether the last ping of the database succeeded."),
    Metric("draining", "gauge", "Whether the service is stopping."),
    Metric("verify_problems", "gauge", "Problems that the last run of verify found."),
    Metric("verify_timestamp_seconds", "gauge", "When the last run of verify ended."),
)
METRICS = {metric.name: metric for metric in _TABLE}

# Series that exist from the start: an alert on what has never happened yet needs a 0 to rise from.
_FROM_ZERO = {
    "query_deadline_expiries_total": ("server", "client"),
    "lock_timeout_expiries_total": ("key", "account"),
    "shed_total": ("too_many_waiting", "draining"),
    "transfers_total": ("completed", "replayed"),
}


class Metrics:
    """The cells. Counters may be raised in any thread; gauges are set when they are read."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a series more for each counter, which nobody reads
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        for one in _TABLE:
            name, labels = PREFIX + one.name, one.labels
            if one.kind == "counter":
                self._counters[one.name] = Counter(name, one.help, labels, registry=self._registry)
            elif one.kind == "gauge":
                self._gauges[one.name] = Gauge(name, one.help, labels, registry=self._registry)
            else:
                self._histograms[one.name] = Histogram(
                    name, one.help, labels, buckets=_BUCKETS, registry=self._registry
                )

        for name, values in _FROM_ZERO.items():
            for value in values:
                self._counters[name].labels(value)

    def count(self, name: str, *labels: str) -> None:
        """Raise a counter by one."""
        cell = self._counters[name]
        (cell.labels(*labels) if labels else cell).inc()

    def observe(self, name: str, seconds: float, *labels: str) -> None:
        """Add a duration to a histogram."""
        cell = self._histograms[name]
        (cell.labels(*labels) if labels else cell).observe(seconds)

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge."""
        cell = self._gauges[name]
        (cell.labels(*labels) if labels else cell).set(value)

    def watch(self, name: str, read: Callable[[], float], *labels: str) -> None:
        """Let a gauge be read at each scrape; `read` must not wait."""
        cell = self._gauges[name]
        (cell.labels(*labels) if labels else cell).set_function(read)

    def render(self) -> bytes:
        """All metrics in the text format."""
        return generate_latest(self._registry)
