"""What /metrics says: the processes' counters, the last census, the children and this process.

Floor 5, in the parent; imports jobs, process and prometheus-client. A scrape reads shared memory
and what is already known; it asks no database and waits for nobody (F106). Numbers of the queue are
as old as their sample, whose time stands beside them.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import (
    Metric as Family,
)

from reliable_worker.jobs.counters import SERIES, Arena, Histogram, Labels
from reliable_worker.jobs.metrics import METRICS, OTHER, PREFIX, Metric
from reliable_worker.jobs.rows import encode_labels
from reliable_worker.process import Role

# What a census counts of each queue, and the metric that shows it.
_QUEUE_GAUGES = {
    "ready": "jobs_ready",
    "running": "jobs_running",
    "expired": "jobs_expired",
    "dead": "jobs_dead",
    "oldest_ready_age_seconds": "oldest_ready_age_seconds",
}

# What a census says of the database itself: a number, or one per table.
_DATABASE_GAUGES = ("oldest_transaction_age_seconds", "table_live_tuples", "table_dead_tuples")

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

Series = dict[Labels, float | Histogram]


class Metrics:
    """The supervisor's collector and the registry it stands in.

    `render` is the body of /metrics; `take_census` keeps the last message of the maintenance child.
    """

    def __init__(
        self,
        arena: Arena,
        *,
        children: Callable[[], Iterable[tuple[Role, int]]],
        ready: Callable[[], bool],
    ) -> None:
        """`children()` lists (role, pid) of the living; `ready()` is what /readyz says."""
        self._arena = arena
        self._children = children
        self._ready = ready
        self._queues: dict[str, dict[str, float]] = {}
        self._database: dict[str, Series] = {}
        self._sampled_at: float | None = None
        self._build: Series = {(_version(), platform.python_version()): 1.0}
        # A registry of our own: the default one belongs to the user's code.
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        """All metrics in the text format."""
        return generate_latest(self._registry)

    def take_census(self, message: Mapping[str, object]) -> None:
        """Keep the numbers of a census message (`unix`, `queues`); leave out what is malformed."""
        queues = message.get("queues")
        sampled_at = message.get("unix")
        if not isinstance(queues, Mapping) or not isinstance(sampled_at, int | float):
            return
        self._sampled_at = float(sampled_at)
        self._queues = {}
        for queue, counts in queues.items():
            if isinstance(counts, Mapping):
                self._take_queue(str(queue), counts)
        database = message.get("database")
        self._database = _of_database(database) if isinstance(database, Mapping) else {}

    def collect(self) -> Iterator[Family]:
        """Every family of the table; called by the registry."""
        known: dict[str, Series] = dict(self._arena.snapshot())
        known |= self._of_queues() | self._database | self._of_processes()
        for metric in METRICS.values():
            series = known.get(metric.name, {})
            if not series and metric.source == "cells" and not metric.labels:
                # A counter that starts at 0 lets the first increase be seen.
                series = {(): _zero(metric)}
            if series:
                yield _family(metric, series)

    def _take_queue(self, queue: str, counts: Mapping[object, object]) -> None:
        # Queue names are data: bounded in length here, and in number by what is shown apart.
        name = encode_labels([queue]).decode()
        if name not in self._queues and len(self._queues) >= SERIES:
            name = OTHER
        kept = self._queues.setdefault(name, {})
        for key in _QUEUE_GAUGES:
            value = counts.get(key)
            if isinstance(value, int | float) and math.isfinite(value):
                # Several queues under one name: counts add up, of ages the greatest counts.
                join = max if key.endswith("_seconds") else float.__add__
                kept[key] = join(kept.get(key, 0.0), float(value))

    def _of_queues(self) -> dict[str, Series]:
        found: dict[str, Series] = {}
        for queue, counts in self._queues.items():
            for key, value in counts.items():
                found.setdefault(_QUEUE_GAUGES[key], {})[queue,] = value
        if self._sampled_at is not None:
            found["sample_timestamp_seconds"] = {(): self._sampled_at}
        return found

    def _of_processes(self) -> dict[str, Series]:
        count = dict.fromkeys(Role, 0)
        resident = dict.fromkeys(Role, 0.0)
        for role, pid in self._children():
            count[role] += 1
            resident[role] += _resident_bytes(pid)
        return {
            "children": {(role.value,): float(number) for role, number in count.items()},
            "children_resident_bytes": {(role.value,): size for role, size in resident.items()},
            "ready": {(): float(self._ready())},
            "build_info": self._build,
        }


def _of_database(message: Mapping[object, object]) -> dict[str, Series]:
    found: dict[str, Series] = {}
    for name in _DATABASE_GAUGES:
        given = message.get(name)
        for label, value in (given if isinstance(given, Mapping) else {None: given}).items():
            if isinstance(value, int | float) and math.isfinite(value):
                labels = () if label is None else (str(label),)
                if len(labels) == len(METRICS[name].labels):
                    found.setdefault(name, {})[labels] = float(value)
    return found


def _family(metric: Metric, series: Series) -> Family:
    name = PREFIX + metric.name
    labels = list(metric.labels)
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(name, metric.help, labels=labels)
        bounds = [*map(str, metric.buckets), "+Inf"]
        for values, value in series.items():
            if isinstance(value, Histogram):
                buckets = zip(bounds, _cumulative(value.counts), strict=True)
                histogram.add_metric(list(values), list(buckets), value.sum)
        return histogram
    make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = make(name, metric.help, labels=labels)
    for values, value in series.items():
        if not isinstance(value, Histogram):
            family.add_metric(list(values), value)
    return family


def _cumulative(counts: Iterable[float]) -> Iterator[float]:
    total = 0.0
    for count in counts:
        total += count
        yield total


def _zero(metric: Metric) -> float | Histogram:
    if metric.kind == "histogram":
        return Histogram((0.0,) * (len(metric.buckets) + 1), 0.0)
    return 0.0


def _resident_bytes(pid: int) -> int:
    """A child's resident memory; 0 where it has just gone or there is no /proc."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/statm", "rb") as statm:
            return int(statm.read().split()[1]) * _PAGE_BYTES
    return 0


def _version() -> str:
    try:
        return version("reliable-worker")
    except PackageNotFoundError:
        return "unknown"
