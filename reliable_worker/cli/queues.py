"""`reliable-worker queues`: the queues and their numbers. Floor 7."""

from __future__ import annotations

import argparse
import dataclasses

from reliable_worker.cli import options, output
from reliable_worker.cli.session import session
from reliable_worker.postgres import catalog

DESCRIPTION = """Every queue that holds unfinished or dead jobs, with their numbers.

ready: due now · scheduled: due later · suspects: of both, run alone after a crash ·
running: lease live · expired: lease over, about to be taken back · dead: given up
"""
EXAMPLES = """examples:
  reliable-worker queues list
  reliable-worker queues list --json
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the verb's arguments."""
    parser = subparsers.add_parser(
        "queues",
        usage="reliable-worker queues list [OPTIONS]",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    actions = parser.add_subparsers(
        dest="action", metavar="list", required=True, prog="reliable-worker queues"
    )
    listing = actions.add_parser(
        "list",
        usage="reliable-worker queues list [OPTIONS]",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    options.add_json(listing)
    options.add_settings(listing)


def run(args: argparse.Namespace) -> int:
    """Print the queues. Raises what `failures` explains."""
    with session(options.load_settings(args)) as conn:
        found = catalog.list_queues(conn)
    if args.json:
        output.print_json(found)
        return 0
    heads = ("QUEUE", "READY", "SCHEDULED", "SUSPECTS", "RUNNING", "EXPIRED", "DEAD", "OLDEST S")
    output.print_table(heads, [dataclasses.astuple(queue) for queue in found])
    return 0
