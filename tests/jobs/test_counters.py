"""Counters: nothing acknowledged is lost under SIGKILL, totals never fall, labels are bounded."""

from __future__ import annotations

import gc
import math
import os
import signal
import threading
from collections.abc import Callable
from functools import partial

import pytest

from reliable_worker.jobs.counters import SERIES, Arena, Histogram, Meters, Snapshot
from reliable_worker.jobs.metrics import METRICS, OTHER, Metric
from reliable_worker.jobs.rows import ROW_CELLS, Memory, encode_labels, read_entries, write_entry

FINISHED = "jobs_finished_total"
DONE = ("default", "message", "succeeded")


def fork(work: Callable[[], None]) -> int:
    """A child that does the work and leaves without any of this process's clean-up."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def total(snapshot: Snapshot, name: str) -> float:
    """The sum of a metric's series; of a histogram, its number of observations."""
    return sum(
        sum(value.counts) if isinstance(value, Histogram) else value
        for value in snapshot.get(name, {}).values()
    )


def test_threads_of_many_processes_add_up_exactly() -> None:
    arena = Arena(children=3, threads=4)

    def work(meters: Meters) -> None:
        def count() -> None:
            for _ in range(1000):
                meters.add(FINISHED, DONE)
                meters.observe("run_seconds", (), 0.02)

        threads = [threading.Thread(target=count) for _ in range(6)]  # two more than rows
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)

    pids = [fork(partial(work, arena.child(index))) for index in range(3)]
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0
    snapshot = arena.snapshot()
    assert snapshot[FINISHED] == {DONE: 18_000}
    histogram = snapshot["run_seconds"][()]
    assert isinstance(histogram, Histogram)
    assert sum(histogram.counts) == histogram.counts[3] == 18_000  # le 0.025
    assert math.isclose(histogram.sum, 360)


def test_nothing_acknowledged_is_lost_when_writers_are_killed() -> None:
    """Writers say through a pipe what they have counted, and are killed in the middle of it."""
    arena = Arena(children=2, threads=2)
    acknowledged = 0
    shown = 0.0
    for round_number in range(30):
        index = round_number % 2
        meters = arena.child(index)
        reader, writer = os.pipe()

        def work(meters: Meters = meters, writer: int = writer) -> None:
            while True:
                for _ in range(50):
                    meters.add(FINISHED, DONE)
                os.write(writer, b"." * 50)

        pid = fork(work)
        os.close(writer)
        heard = len(os.read(reader, 4096))
        during = total(arena.snapshot(), FINISHED)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while more := os.read(reader, 65536):
            heard += len(more)
        os.close(reader)
        acknowledged += heard
        before = total(arena.snapshot(), FINISHED)
        arena.fold(index)
        after = total(arena.snapshot(), FINISHED)
        assert shown <= during <= before == after
        assert acknowledged <= after <= acknowledged + 50 * (round_number + 1)
        shown = after


def test_totals_never_fall_while_children_die_and_are_replaced() -> None:
    arena = Arena(children=4, threads=2)
    last: dict[tuple[str, tuple[str, ...]], float] = {}

    def scrape() -> None:
        for name, series in arena.snapshot().items():
            for labels, value in series.items():
                number = sum(value.counts) if isinstance(value, Histogram) else value
                assert number >= last.get((name, labels), 0)
                last[name, labels] = number

    for generation in range(10):
        pids = []
        for index in range(4):
            meters = arena.child(index)

            def work(meters: Meters = meters, generation: int = generation) -> None:
                for step in range(300):
                    meters.add(FINISHED, (f"queue-{step % 7}", f"kind-{generation}", "dead"))
                    meters.observe("wait_seconds", (), step / 10)

            pids.append(fork(work))
        scrape()
        for index, pid in enumerate(pids):
            os.waitpid(pid, 0)
            scrape()
            arena.fold(index)
            scrape()
    assert total(arena.snapshot(), FINISHED) == 10 * 4 * 300
    assert total(arena.snapshot(), "wait_seconds") == 10 * 4 * 300


def test_a_hundred_thousand_labels_are_bounded_and_none_is_lost() -> None:
    arena = Arena(children=1, threads=1)
    meters = arena.child(0)
    for number in range(100_000):
        meters.add(FINISHED, (f"queue-{number}", f"kind-{number}", "succeeded"))
    series = arena.snapshot()[FINISHED]
    assert len(series) <= SERIES + 1
    assert (OTHER, OTHER, "succeeded") in series
    assert sum(v for v in series.values() if not isinstance(v, Histogram)) == 100_000
    # A full row still counts what has no open label, and a histogram.
    meters.add("retries_total")
    meters.observe("run_seconds", (), 1.0)
    assert total(arena.snapshot(), "retries_total") == 1
    assert total(arena.snapshot(), "run_seconds") == 1


def test_the_bound_holds_over_generations_of_children() -> None:
    arena = Arena(children=1, threads=1)
    for generation in range(30):
        meters = arena.child(0)
        for number in range(200):
            meters.add(FINISHED, (f"queue-{generation}-{number}", "k", "dead"))
        shown = total(arena.snapshot(), FINISHED)
        arena.fold(0)
        assert total(arena.snapshot(), FINISHED) == shown == 200 * (generation + 1)
    assert len(arena.snapshot()[FINISHED]) <= SERIES + 1


def test_without_any_room_measurements_are_dropped_and_counted() -> None:
    metrics = {
        "m_total": Metric("m_total", "counter", "m", ("reason",)),
        "samples_dropped_total": METRICS["samples_dropped_total"],
    }
    arena = Arena(children=1, threads=1, metrics=metrics)
    meters = arena.child(0)
    for number in range(ROW_CELLS):
        meters.add("samples_dropped_total", (), 0)
        meters.add("m_total", (f"a closed label gone wild {number}",))
    snapshot = arena.snapshot()
    assert total(snapshot, "samples_dropped_total") + total(snapshot, "m_total") == ROW_CELLS


@pytest.mark.parametrize(
    "label",
    ["", "a\0b", "line\nbreak", "\x1b[31mred", "\ud800", "ü" * 500, "𝕏" * 64, 'quote"', "\\"],
)
def test_any_text_is_a_label(label: str) -> None:
    arena = Arena(children=1, threads=1)
    meters = arena.child(0)
    meters.add(FINISHED, (label, label, "dead"))
    meters.add(FINISHED, (label, label, "dead"))
    [(labels, value)] = arena.snapshot()[FINISHED].items()
    assert value == 2
    assert len(labels) == 3
    assert all(len(part.encode()) <= 128 for part in labels)


def test_threads_that_end_hand_their_row_on() -> None:
    """A heartbeat thread per job must not use up the rows."""
    arena = Arena(children=1, threads=2)
    meters = arena.child(0)
    for _ in range(50):
        thread = threading.Thread(target=meters.add, args=(FINISHED, DONE))
        thread.start()
        thread.join(30)
    gc.collect()
    assert total(arena.snapshot(), FINISHED) == 50
    assert len(meters._free) == 2


def test_gauges_are_set_and_vanish_with_their_process() -> None:
    arena = Arena(children=2, threads=1)
    meters = [arena.child(0), arena.child(1)]
    for value in (3, 2):
        meters[0].gauge("pool_connections", ("finish", "idle"), value)
    meters[1].gauge("pool_connections", ("finish", "idle"), 5)
    assert arena.snapshot()["pool_connections"] == {("finish", "idle"): 7}
    arena.fold(0)
    assert arena.snapshot()["pool_connections"] == {("finish", "idle"): 5}


def test_nonsense_is_dropped() -> None:
    arena = Arena(children=1, threads=1)
    meters = arena.child(0)
    for amount in (-1.0, math.nan, math.inf, -math.inf):
        meters.add("retries_total", (), amount)
        if amount != -1.0:
            meters.observe("run_seconds", (), amount)
    assert total(arena.snapshot(), "retries_total") == 0
    assert total(arena.snapshot(), "run_seconds") == 0


def test_mistakes_of_the_caller_are_said() -> None:
    arena = Arena(children=1, threads=1)
    meters = arena.child(0)
    with pytest.raises(KeyError):
        meters.add("no_such_total")
    with pytest.raises(ValueError, match="jobs_finished_total takes the labels"):
        meters.add(FINISHED, ("only one",))
    with pytest.raises(IndexError):
        arena.child(1)


def test_a_forked_copy_of_used_meters_counts_nothing() -> None:
    """A handler that forks, or the parent's own meters in its child: one writer for a row."""
    arena = Arena(children=1, threads=2)
    parent, child = arena.parent(), arena.child(0)
    parent.add("retries_total")
    parent.gauge("pool_connections", ("a", "idle"), 1)

    def work() -> None:
        parent.add("retries_total", (), 100)
        parent.gauge("pool_connections", ("a", "idle"), 100)
        child.add("leases_lost_total")

    assert os.waitpid(fork(work), 0)[1] == 0
    snapshot = arena.snapshot()
    assert snapshot["retries_total"] == {(): 1}
    assert snapshot["pool_connections"] == {("a", "idle"): 1}
    assert snapshot["leases_lost_total"] == {(): 1}


def test_a_reader_stops_before_a_torn_entry() -> None:
    """On processors that reorder stores the head may be seen before the entry it publishes."""
    metric = METRICS[FINISHED]
    memory = Memory(64)
    labels = encode_labels(DONE)
    first = write_entry(memory, 0, 0, metric, labels)
    second = write_entry(memory, first + 1, 0, metric, encode_labels(("a", "b", "c")))
    torn = memory.bytes[(first + 2) * 8]
    memory.bytes[(first + 2) * 8] = 0
    assert [e.labels for e in read_entries(memory, 0, second + 1, [metric])] == [DONE]
    memory.bytes[(first + 2) * 8] = torn
    assert len(read_entries(memory, 0, second + 1, [metric])) == 2
