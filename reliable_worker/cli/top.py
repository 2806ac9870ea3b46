"""`reliable-worker top`: queues, rates, slots and running jobs, again and again. Floor 7."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from reliable_worker.cli import options, output, queues, words
from reliable_worker.cli.session import session
from reliable_worker.postgres import sample
from reliable_worker.postgres.database import Connection
from reliable_worker.postgres.sample import Sample

DESCRIPTION = """Show queues, rates, slots and the jobs that run longest, until Ctrl-C.

--once prints one look and ends; --json likewise, as one JSON value. Rates are those of a second.
Each number is counted up to 10,000, so that looking costs the same whatever the table holds.
"""
EXAMPLES = """examples:
  reliable-worker top
  reliable-worker top --every 5s
  reliable-worker top --once
  reliable-worker top --json
"""
# Between the two looks from which a single answer has its rates.
_ONCE_SECONDS = 1.0
_QUEUE_HEADS = ("QUEUE", "READY", "SCHEDULED", "SUSPECTS", "RUNNING", "EXPIRED", "DEAD",
                "OLDEST S", "PAUSED")  # fmt: skip
_RUNNING_HEADS = ("JOB", "KIND", "QUEUE", "ATTEMPT", "HOST/PID/SLOT", "FOR S", "LEASE S")
Table = tuple[Sequence[str], list[tuple[object, ...]]]


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the verb's arguments."""
    parser = subparsers.add_parser("top", description=DESCRIPTION, epilog=EXAMPLES)
    parser.add_argument("--once", action="store_true", help="one look, then end")
    parser.add_argument(
        "--every", metavar="TIME", type=words.pause_seconds, default=2.0, help="default 2s"
    )
    options.add_json(parser)
    options.add_settings(parser)


def run(args: argparse.Namespace) -> int:
    """Look until told to stop. Raises what `failures` explains."""
    with session(options.load_settings(args)) as conn:
        if args.once or args.json:
            (found,) = _looks(conn, _ONCE_SECONDS, 1)
            if args.json:
                output.print_json(found)
            else:
                _print(found)
            return 0
        try:
            _watch(conn, args.every)
        except KeyboardInterrupt:
            pass  # the way to leave
    return 0


def _looks(conn: Connection, seconds: float, count: int = sys.maxsize) -> Iterator[Sample]:
    """Samples with their rates, one every `seconds`."""
    before, pause = sample.take(conn), threading.Event()
    for _ in range(count):
        pause.wait(seconds)
        before = sample.take(conn, before)
        yield before


def _watch(conn: Connection, seconds: float) -> None:
    rich = _rich() if sys.stdout.isatty() else None
    if rich is None:
        for found in _looks(conn, seconds):
            print("\033[H\033[J" if sys.stdout.isatty() else "", end="")
            _print(found)
            print(flush=True)
        return
    with rich.Live(screen=True, auto_refresh=False) as live:
        for found in _looks(conn, seconds):
            live.update(_drawn(rich, found), refresh=True)


def _print(found: Sample) -> None:
    print(_summary(found))
    for heads, rows in _tables(found):
        print()
        output.print_table(heads, rows)


def _summary(found: Sample) -> str:
    return (
        f"{found.processes} worker processes, {found.busy} of {found.slots} slots busy;"
        f" {_rate(found.enqueued_rate)} enqueued and {_rate(found.ended_rate)} ended a second"
    )


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _tables(found: Sample) -> list[Table]:
    running: list[tuple[object, ...]] = [
        (job.id, job.kind, job.queue, job.attempt, job.where, job.held_seconds, job.lease_seconds)
        for job in found.running
    ]
    return [(_QUEUE_HEADS, [queues.row(each) for each in found.queues]), (_RUNNING_HEADS, running)]


def _rich() -> Any:
    """What rich draws with; None where it is not installed (the extra "progress")."""
    try:
        from rich import console, live, table, text
    except ImportError:
        return None

    class Rich:
        """The four things needed."""

        Live, Group, Table, Text = live.Live, console.Group, table.Table, text.Text

    return Rich


def _drawn(rich: Any, found: Sample) -> Any:
    parts = [rich.Text(_summary(found), style="bold")]
    for heads, rows in _tables(found):
        table = rich.Table(*heads, expand=True)
        for cells in rows:
            table.add_row(*(rich.Text(output.text(cell)) for cell in cells))
        parts.append(table)
    return rich.Group(*parts)
