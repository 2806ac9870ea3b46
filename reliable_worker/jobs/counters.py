"""Counters that outlive the process that counted: shared memory made before the fork (D15).

Floor 0; imports `metrics` and `rows`. The parent makes one `Arena`; each child gets one block of
it, each thread of a child one row: its own label table and its own 8-byte cells, that thread their
only writer. So counting takes no lock, no file and no system call, a SIGKILL in the middle loses
nothing that was counted, and the parent reads at any time. After reaping a child the parent folds
its block into the retired totals; the next child finds it empty.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from reliable_worker.jobs.metrics import METRICS, OPEN_LABELS, OTHER, Metric
from reliable_worker.jobs.rows import (
    ROW_CELLS,
    SPARE_CELLS,
    Entry,
    Memory,
    encode_labels,
    entry_cells,
    read_entries,
    write_entry,
)

Labels = tuple[str, ...]

# Series of one metric the parent tells apart; later ones are counted under `other`. A scrape of a
# thousand series takes milliseconds, and no dashboard reads more.
SERIES = 1000

# The shared row's lock is held for microseconds. Who cannot have it for this long has met a stopped
# thread, and a measurement is worth less than a job's time.
LOCK_SECONDS = 1.0

_DROPPED = "samples_dropped_total"


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations per bucket (not cumulative; the last is +Inf) and the sum of all of them."""

    counts: tuple[float, ...]
    sum: float


Snapshot = dict[str, dict[Labels, float | Histogram]]


class Arena:
    """All blocks. Belongs to the parent and its one thread; make it before the first fork."""

    def __init__(
        self, children: int, threads: int, metrics: Mapping[str, Metric] = METRICS
    ) -> None:
        """`children` blocks of `threads` rows each, and one block for the parent itself."""
        self._metrics = tuple(metrics.values())
        # One more row per block: shared under a lock, for gauges and for threads beyond `threads`.
        self._rows_per_child = threads + 1
        self._children = children
        self._rows = (children + 1) * self._rows_per_child
        # The heads lie together in front: reading an idle row then touches no page of it.
        self._memory = Memory(self._rows + self._rows * ROW_CELLS)
        self._known: dict[int, list[Entry]] = {}
        self._retired: dict[str, dict[Labels, list[float]]] = {}
        self._admitted: dict[str, set[Labels]] = {}

    def child(self, index: int) -> Meters:
        """Block `index` (from 0) for the process about to be forked. IndexError: no such block."""
        if not 0 <= index < self._children:
            raise IndexError(f"no block {index}: the arena was made for {self._children} children")
        return self._meters(index)

    def parent(self) -> Meters:
        """The parent's own block; call it once."""
        return self._meters(self._children)

    def fold(self, index: int) -> None:
        """Move a reaped child's totals to the retired ones and empty its block; gauges vanish.

        Only after the child was reaped: a living one would go on writing where nobody reads.
        """
        for row in self._rows_of(index):
            for entry in self._entries(row):
                if entry.metric.kind != "gauge":
                    self._add(self._retired, entry)
            start = self._start(row)
            self._memory.zero(start, start + self._memory.words[row])
            self._memory.words[row] = 0
            self._known.pop(row, None)

    def snapshot(self) -> Snapshot:
        """{metric: {label values: value}} of all processes, dead ones included.

        Counters and histograms never fall from one snapshot to the next.
        """
        totals = {
            name: {labels: list(values) for labels, values in series.items()}
            for name, series in self._retired.items()
        }
        for row in range(self._rows):
            for entry in self._entries(row):
                self._add(totals, entry)
        kinds = {metric.name: metric.kind for metric in self._metrics}
        return {
            name: {labels: _sample(kinds[name], values) for labels, values in series.items()}
            for name, series in totals.items()
        }

    def _meters(self, index: int) -> Meters:
        rows = self._rows_of(index)
        return Meters(self._memory, self._metrics, [(row, self._start(row)) for row in rows])

    def _rows_of(self, index: int) -> range:
        return range(index * self._rows_per_child, (index + 1) * self._rows_per_child)

    def _start(self, row: int) -> int:
        return self._rows + row * ROW_CELLS

    def _entries(self, row: int) -> list[Entry]:
        """The row's series. A row only grows until it is folded, so what was read stays known."""
        used = self._memory.words[row]
        if not used:
            return []
        known = self._known.setdefault(row, [])
        start = self._start(row)
        unread = known[-1].end if known else start
        known += read_entries(self._memory, unread, start + used, self._metrics)
        return known

    def _add(self, totals: dict[str, dict[Labels, list[float]]], entry: Entry) -> None:
        """Add one series of one row to the totals, under `other` where its metric has too many.

        What was once shown apart stays apart: merging it away later would look like a fall.
        """
        name, labels = entry.metric.name, entry.labels
        admitted = self._admitted.setdefault(name, set())
        if labels not in admitted:
            if len(admitted) >= SERIES:
                labels = _others(entry.metric, labels)
            admitted.add(labels)
        values = self._memory.doubles[entry.value : entry.end]
        series = totals.setdefault(name, {})
        so_far = series.get(labels)
        series[labels] = (
            list(values) if so_far is None else [a + b for a, b in zip(so_far, values, strict=True)]
        )


class Meters:
    """One process's counters; every thread writes a row of its own.

    Metrics are those of the table in `jobs/metrics.py`, named without prefix; an unknown name is a
    KeyError and a wrong number of labels a ValueError, both the caller's mistake. Anything else
    that could go wrong (no room, no finite number) drops the measurement and never raises.
    After a fork the inherited object counts nothing: a row has one writer.
    """

    def __init__(
        self, memory: Memory, metrics: tuple[Metric, ...], rows: list[tuple[int, int]]
    ) -> None:
        numbers = {metric.name: number for number, metric in enumerate(metrics)}
        table = _Table(memory, metrics, numbers)
        shared, *own = rows
        self._shared = _Row(table, *shared)
        self._free = deque(_Row(table, *row) for row in own)
        self._lock = threading.Lock()
        self._local = threading.local()
        self._buckets = {metric.name: metric.buckets for metric in metrics}

    def add(self, name: str, labels: Labels = (), amount: float = 1.0) -> None:
        """Raise a counter by `amount`: finite and not negative, else it is dropped."""
        if 0 <= amount < math.inf:
            self._write(name, labels, 0, amount)

    def observe(self, name: str, labels: Labels, value: float) -> None:
        """Put one observation, in the metric's unit, into a histogram."""
        if math.isfinite(value):
            bucket = 1
            for bound in self._buckets[name]:
                if value <= bound:
                    break
                bucket += 1
            # Sum first: what the count says was there is then always in the sum.
            self._write(name, labels, 0, max(value, 0.0))
            self._write(name, labels, bucket, 1.0)

    def gauge(self, name: str, labels: Labels, value: float) -> None:
        """Set a gauge of this process; a scrape shows the sum over the living processes."""
        _in_use.add(self)
        if self._lock.acquire(timeout=LOCK_SECONDS):
            try:
                cell = self._shared.cell(name, labels)
                if cell is not None:
                    self._shared.doubles[cell] = value
            finally:
                self._lock.release()

    def _write(self, name: str, labels: Labels, offset: int, amount: float) -> None:
        try:
            row: _Row | None = self._local.holder.row
        except AttributeError:
            row = self._take_row()
        if row is not None:
            row.add(name, labels, offset, amount)
        elif self._lock.acquire(timeout=LOCK_SECONDS):
            try:
                self._shared.add(name, labels, offset, amount)
            finally:
                self._lock.release()

    def _take_row(self) -> _Row | None:
        """A row for this thread, given back when the thread ends; None: all are taken."""
        _in_use.add(self)
        try:
            row = self._free.popleft()
        except IndexError:
            return None
        self._local.holder = _Holder(row, self._free)
        return row

    def _disown(self) -> None:
        """Count nothing any more: this is a forked copy, the cells belong to another process."""
        self._local = threading.local()
        self._free = deque()
        self._lock = threading.Lock()
        self._shared.close()


class _Holder:
    """A thread's hold on its row: dies with the thread and hands the row to the next one."""

    __slots__ = ("_free", "row")

    def __init__(self, row: _Row, free: deque[_Row]) -> None:
        self.row = row
        self._free = free

    def __del__(self) -> None:
        self._free.append(self.row)


@dataclass(frozen=True, slots=True)
class _Table:
    memory: Memory
    metrics: tuple[Metric, ...]
    numbers: Mapping[str, int]


class _Row:
    """The writer's side of a row: where each of its series lies."""

    __slots__ = ("_cells", "_closed", "_head", "_start", "_table", "doubles")

    def __init__(self, table: _Table, head: int, start: int) -> None:
        self._table = table
        self._head = head
        self._start = start
        self._cells: dict[tuple[str, Labels], int] = {}
        self.doubles = table.memory.doubles
        self._closed = False

    def close(self) -> None:
        self._cells.clear()
        self._closed = True

    def add(self, name: str, labels: Labels, offset: int, amount: float) -> None:
        cell = self.cell(name, labels)
        if cell is not None:
            self.doubles[cell + offset] += amount

    def cell(self, name: str, labels: Labels) -> int | None:
        """The first value cell of a series, made on first use; None: there is no room at all."""
        try:
            return self._cells[name, labels]
        except KeyError:
            pass
        if self._closed:
            return None
        number = self._table.numbers[name]
        metric = self._table.metrics[number]
        if len(labels) != len(metric.labels):
            raise ValueError(f"{name} takes the labels {metric.labels}, not {labels}")
        cell = self._make(number, metric, labels, ROW_CELLS - SPARE_CELLS)
        if cell is not None:
            self._cells[name, labels] = cell
            return cell
        return self._other(number, metric, labels)

    def _other(self, number: int, metric: Metric, labels: Labels) -> int | None:
        """The cell of `other`. Kept under its own name only: the true ones have no bound."""
        others = _others(metric, labels)
        key = (metric.name, others)
        if key in self._cells:
            return self._cells[key]
        cell = self._make(number, metric, others, ROW_CELLS)
        if cell is not None:
            self._cells[key] = cell
        elif metric.name != _DROPPED and _DROPPED in self._table.numbers:
            self.add(_DROPPED, (), 0, 1.0)
        return cell

    def _make(self, number: int, metric: Metric, labels: Labels, limit: int) -> int | None:
        """Append a series; the head that publishes it is written last."""
        memory = self._table.memory
        data = encode_labels(labels)
        used = memory.words[self._head]
        after = used + entry_cells(metric, data)
        if after > limit:
            return None
        cell = write_entry(memory, self._start + used, number, metric, data)
        memory.words[self._head] = after
        return cell


def _others(metric: Metric, labels: Labels) -> Labels:
    """The same labels with what users name replaced; what our own code names stays."""
    return tuple(
        OTHER if name in OPEN_LABELS else value
        for name, value in zip(metric.labels, labels, strict=True)
    )


def _sample(kind: str, values: list[float]) -> float | Histogram:
    if kind == "histogram":
        return Histogram(tuple(values[1:]), values[0])
    return values[0]


# Those that have written. One made for a child and not yet used is the child's after the fork.
_in_use: weakref.WeakSet[Meters] = weakref.WeakSet()


def _after_fork() -> None:
    for meters in tuple(_in_use):
        meters._disown()
    _in_use.clear()


os.register_at_fork(after_in_child=_after_fork)
