"""How series lie in shared memory: the layout behind `counters`, and nothing but the layout.

Floor 0; imports `metrics` only. A row is a run of 8-byte cells that only grows, entry by entry:

    header | label bytes, padded to whole cells | value cells

Header: the checksum in the upper 32 bits, metric number + 1 (16 bits), length of the labels (16).
The labels are UTF-8, joined by NUL. How far a row is filled stands in the row's head, written after
the entry is whole: a writer killed half-way leaves an entry nobody sees. The checksum is for
processors that may show the head before the entry: the reader stops there and returns next time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from mmap import mmap
from zlib import crc32

from reliable_worker.jobs.metrics import Metric

CELL = 8

# 64 KiB: a queue and kind take about 30 cells over all their metrics, so one thread can tell more
# than 200 of them apart. Pages nobody touched cost nothing.
ROW_CELLS = 8192

# Only series under `other` may use the last eighth: there is always room to say "something else".
SPARE_CELLS = ROW_CELLS // 8

# A queue or kind has at most 128 bytes by the table's own rule; anything else is cut there.
LABEL_BYTES = 128


@dataclass(frozen=True, slots=True)
class Entry:
    """One series found in a row; `value` and `end` bound its value cells."""

    metric: Metric
    labels: tuple[str, ...]
    value: int
    end: int


class Memory:
    """Anonymous memory shared over forks, seen as integers, as doubles and as bytes."""

    def __init__(self, cells: int) -> None:
        self._map = mmap(-1, cells * CELL)
        self.bytes = memoryview(self._map)
        # Native formats on purpose: the interpreter then moves a cell as one aligned 8-byte store.
        self.words = self.bytes.cast("Q")
        self.doubles = self.bytes.cast("d")

    def zero(self, start: int, end: int) -> None:
        self.bytes[start * CELL : end * CELL] = bytes((end - start) * CELL)


def encode_labels(labels: Sequence[object]) -> bytes:
    """The labels as they lie in the row: each cut to `LABEL_BYTES` on a character boundary."""
    return b"\0".join(_encode(str(label)) for label in labels)


def _encode(label: str) -> bytes:
    data = label.replace("\0", "\\0").encode("utf-8", "backslashreplace")
    if len(data) > LABEL_BYTES:
        data = data[:LABEL_BYTES].decode("utf-8", "ignore").encode()
    return data


def entry_cells(metric: Metric, labels: bytes) -> int:
    """How many cells an entry takes in all."""
    return 1 + -(-len(labels) // CELL) + metric.cells


def write_entry(memory: Memory, start: int, number: int, metric: Metric, labels: bytes) -> int:
    """Write a series with zero values at cell `start`; the first value cell. Publishes nothing."""
    begin = (start + 1) * CELL
    memory.bytes[begin : begin + len(labels)] = labels
    memory.words[start] = _header(number, labels)
    return start + entry_cells(metric, labels) - metric.cells


def read_entries(memory: Memory, start: int, end: int, metrics: Sequence[Metric]) -> list[Entry]:
    """The whole entries between two cells, in order; stops before one that is not whole yet."""
    entries: list[Entry] = []
    while start < end:
        header = memory.words[start]
        number = (header >> 16 & 0xFFFF) - 1
        begin = (start + 1) * CELL
        labels = bytes(memory.bytes[begin : begin + (header & 0xFFFF)])
        if not 0 <= number < len(metrics) or _header(number, labels) != header:
            break
        metric = metrics[number]
        stop = start + entry_cells(metric, labels)
        texts = tuple(labels.decode().split("\0")) if metric.labels else ()
        entries.append(Entry(metric, texts, stop - metric.cells, stop))
        start = stop
    return entries


def _header(number: int, labels: bytes) -> int:
    low = (number + 1) << 16 | len(labels)
    return crc32(labels, low) << 32 | low
